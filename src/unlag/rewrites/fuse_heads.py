"""Spelled-out attention replaced by one fused operator behind its projections, which stay products of their own."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from unlag.model.graph import insert_node
from unlag.rewrites.attention_layout import Layout
from unlag.rewrites.attention_nodes import AttentionGraph, Fused, fuse_blocks, mask_attributes
from unlag.rewrites.attention_operands import ROUNDING, Held, HeldForms
from unlag.rewrites.attention_pattern import AttentionBlock


class Read(NamedTuple):
    """A value that the operator reads, the axis that has the keys' number, and what it holds keys multiplied by."""

    value: ir.Value
    axis: int
    factor: float


def fuse_heads(model: ir.Model) -> int:
    """softmax(s·q·kᵀ + mask)·v of heads becomes MultiHeadAttention(q, k, v, mask).

    Projections are left as they are, so that quantized ones keep their integer kernels. Keys and values may come split
    into heads already, as rotary positions and repeated heads leave them.
    """
    return fuse_blocks(model, heads_of)


def heads_of(graph: AttentionGraph, block: AttentionBlock, layout: Layout, last: ir.Node) -> Fused | None:
    """The operator for one block; nothing where its queries, keys or values can't be read as it wants them."""
    query_forms, key_forms, value_forms = graph.forms(block, layout)
    mask = layout.mask
    if (mask.kind == "bias" and mask.name not in graph.floats) or not (query_forms.columns or query_forms.split):
        return None
    pair = _pair(graph, block, layout, key_forms, value_forms, last)
    query = None if pair is None else graph.columns(query_forms, last, f"{block.node}.query")
    if query is None or pair is None:
        return None
    key, value = pair
    padding = graph.padding(mask.name) if mask.kind == "padding" else None
    bias = graph.bias(mask.name, last, query[0], (key.value, key.axis)) if mask.kind == "bias" else None
    scale = layout.scale / (query[1].factor * key.factor)
    inputs = (query[0], key.value, value, None, padding, bias)
    return Fused("MultiHeadAttention", inputs, {**mask_attributes(layout), "scale": scale}, last)


def _pair(  # noqa: PLR0913, PLR0917 - keys and values with all that they may be read from
    graph: AttentionGraph, block: AttentionBlock, layout: Layout, keys: HeldForms, values: HeldForms, last: ir.Node
) -> tuple[Read, ir.Value] | None:
    """Keys and values in one form: both as columns, or both split, each head as often as queries read it."""
    if layout.groups == layout.heads and keys.columns is not None and is_exact(values.columns):
        return Read(graph.values[keys.columns.name], 1, keys.columns.factor), graph.value_of(values.columns)
    if not is_exact(values.repeated):
        return None
    if keys.repeated is not None:
        return Read(graph.values[keys.repeated.name], 2, keys.repeated.factor), graph.value_of(values.repeated)
    turned = graph.values.get(block.operands[1])
    if turned is None or layout.operands.key.flat or block.operands[1] not in graph.floats:
        return None
    back = insert_node(last, "Transpose", [turned], name=f"{block.node}.key", attributes={"perm": [0, 1, 3, 2]})
    return Read(back, 2, layout.operands.key.factor), graph.value_of(values.repeated)


def is_exact(held: Held | None) -> bool:
    """Whether a value holds the numbers themselves, not multiplied."""
    return held is not None and abs(held.factor - 1) <= ROUNDING
