"""Spelled-out attention replaced by one fused operator, projections and all."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array
from unlag.rewrites.attention_layout import Layout
from unlag.rewrites.attention_nodes import AttentionGraph, Fused, fuse_blocks, mask_attributes
from unlag.rewrites.attention_pattern import AttentionBlock
from unlag.rewrites.evaluate import Array
from unlag.rewrites.fuse_heads import heads_of
from unlag.rewrites.projections import Projection


def fuse_attention(model: ir.Model) -> int:
    """softmax(s·(x·Wq)·(x·Wk)ᵀ + mask)·(x·Wv), heads and all, becomes Attention(x, [Wq Wk Wv], mask).

    Where the three projections have one input and constant weights, they are packed into the operator; else it
    is MultiHeadAttention behind the projections as they are. A padding mask is handed over as the ones and zeros
    of the graph's input, a causal one as an attribute, any other additive mask as it is. What the layout check does
    not fully understand stays.
    """
    return fuse_blocks(model, _attention)


def _attention(graph: AttentionGraph, block: AttentionBlock, layout: Layout, last: ir.Node) -> Fused | None:
    packed = None if layout.mask.kind == "bias" else _packed(graph, block, layout)
    if packed is None:
        return heads_of(graph, block, layout, last)  # quantizers lose the bias of an Attention that they take
    padding = graph.padding(layout.mask.name) if layout.mask.kind == "padding" else None
    return Fused("Attention", (*packed, padding), {**mask_attributes(layout), "scale": layout.scale}, last)


def _packed(graph: AttentionGraph, block: AttentionBlock, layout: Layout) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The operator's input, weight and bias; nothing where the projections can't be one constant weight."""
    parts = [p for p in block.projections if p is not None]
    products = [graph.index.producer(p.product) for p in parts]
    if len(parts) != 3 or len({p.source for p in parts}) != 1 or layout.groups != layout.heads:
        return None
    if any(p is None or p.op_type != "MatMul" for p in products) or not _is_batched(graph, parts[0].source):
        return None
    source, starts, width = graph.values[parts[0].source], layout.starts, layout.width
    weights = [constant_array(graph.values.get(p.weight)) for p in parts]
    if any(w is None or w.ndim != 2 or w.dtype != np.float32 for w in weights):
        return None  # a dequantized weight keeps its integer kernel when it stays a product of its own
    name = f"{block.node}.qkv"
    bias = _packed_bias(graph, parts, layout, f"{name}.bias")
    if bias is None:
        return None
    if len({p.output for p in parts}) == 1 and starts == (0, width, 2 * width) and parts[0].width == 3 * width:
        return source, graph.values[parts[0].weight], bias
    columns = [np.asarray(w)[:, s : s + width] for w, s in zip(weights, starts, strict=True)]
    return source, add_constant(graph.model.graph, np.concatenate(columns, axis=1), f"{name}.weight"), bias


def _is_batched(graph: AttentionGraph, source: str) -> bool:
    """Whether the projections' input is [batch, sequence, width] in floats, as far as that is known."""
    sizes = graph.index.sizes(source)
    return source in graph.floats and (sizes is None or len(sizes) == 3)


def _packed_bias(graph: AttentionGraph, parts: list[Projection], layout: Layout, name: str) -> ir.Value | None:
    """All three biases side by side; zeros where a projection has none, since kernels rely on it.

    Nothing where a bias is no float constant of one axis.
    """
    pieces = []
    for projection, start in zip(parts, layout.starts, strict=True):
        array: Array = np.zeros(start + layout.width, np.float32)
        if projection.bias is not None:
            held = constant_array(graph.values.get(projection.bias))
            if held is None or held.dtype != np.float32 or held.size < start + layout.width:
                return None
            array = held.reshape(-1)
        pieces.append(array[start : start + layout.width])
    return add_constant(graph.model.graph, np.concatenate(pieces), name)
