"""Separate query, key and value projections packed into one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from unlag.model.facts import facts_of
from unlag.model.graph import add_constant, constant_array, insert_node, opset_of, sweep
from unlag.rewrites.attention_pattern import attention_blocks
from unlag.rewrites.evaluate import Array
from unlag.rewrites.neighbors import made_by
from unlag.rewrites.plain_view import plain_view
from unlag.rewrites.projections import Projection

_AXES_AS_INPUTS = 13
"""From this opset on Split takes its sizes as an input and DequantizeLinear a scale for each column."""


@dataclass(frozen=True)
class _Part:
    """One projection's arrays; codes and scale where its weight is dequantized."""

    output: ir.Value
    product: ir.Node
    weight: Array
    scale: Array | None
    bias: Array | None


def pack_projections(model: ir.Model) -> int:
    """x·Wq + bq, x·Wk + bk, x·Wv + bv become one x·[Wq Wk Wv] + [bq bk bv], split into its columns.

    The projections are those of one attention block; weights are float constants, or int8 codes behind one
    DequantizeLinear each, whose scales become one for each column. Returns the number of blocks packed.
    """
    values = {str(v.name): v for node in model.graph for v in node.outputs if v.name}
    packed = 0
    for number, block in enumerate(attention_blocks(plain_view(facts_of(model)))):
        distinct = {p.output: p for p in block.projections if p is not None}
        sources = {p.source for p in distinct.values()}
        parts = [_part(values, p) for p in distinct.values()]
        ready = [part for part in parts if part is not None]
        if None in block.projections or not len(ready) == len(parts) > 1:
            continue
        writable = opset_of(model) >= _AXES_AS_INPUTS or all(part.scale is None for part in ready)
        if len(sources) == 1 and writable and _fit(ready):
            _pack(model, ready, f"{block.node or number}.packed")
            packed += 1
    if packed:
        sweep(model)
    return packed


def _part(values: dict[str, ir.Value], projection: Projection) -> _Part | None:
    output, made = values.get(projection.output), values.get(projection.product)
    product = made_by(made, "MatMul")
    if output is None or made is None or product is None or output.is_graph_output():
        return None
    add = output.producer()
    if projection.bias is not None and (add is None or made not in add.inputs):
        return None  # a cast between product and bias
    bias = None if add is None or projection.bias is None else _bias(add, made)
    if (bias is None) != (projection.bias is None):
        return None  # a bias that is dequantized
    weight = constant_array(product.inputs[1])
    if weight is not None:
        return _Part(output, product, weight, None, bias)
    stored = _codes_and_scale(product.inputs[1])
    return None if stored is None else _Part(output, product, *stored, bias)


def _codes_and_scale(weight: ir.Value | None) -> tuple[Array, Array] | None:
    """Symmetric codes of a dequantized weight, and one scale for each column."""
    dequantize = made_by(weight, "DequantizeLinear")
    if dequantize is None or dequantize.attributes.get_int("block_size") not in {None, 0}:
        return None
    zero = constant_array(dequantize.inputs[2]) if len(dequantize.inputs) > 2 else None
    if len(dequantize.inputs) > 2 and (zero is None or zero.any()):
        return None
    codes, scale = constant_array(dequantize.inputs[0]), constant_array(dequantize.inputs[1])
    by_column = dequantize.attributes.get_int("axis") in {None, 1, -1}
    if codes is None or scale is None or (scale.size > 1 and not by_column):
        return None
    return codes, np.broadcast_to(scale.reshape(-1), codes.shape[1:])


def _bias(add: ir.Node, product: ir.Value) -> Array | None:
    return next((array for v in add.inputs if v is not product and (array := constant_array(v)) is not None), None)


def _fit(parts: list[_Part]) -> bool:
    """Whether the arrays can stand side by side: types agree, and all of them or none have scales and biases."""
    weights = {(p.weight.dtype, p.weight.ndim, p.weight.shape[0]) for p in parts}
    scales = {None if p.scale is None else p.scale.dtype for p in parts}
    biases = {None if p.bias is None else (p.bias.dtype, p.bias.ndim) for p in parts}
    wide = all(p.bias is None or p.bias.shape == p.weight.shape[1:] for p in parts)
    return len(weights) == len(scales) == len(biases) == 1 and parts[0].weight.ndim == 2 and wide


def _pack(model: ir.Model, parts: list[_Part], name: str) -> None:
    graph = model.graph
    nodes = {part.product for part in parts}
    first = next(node for node in graph if node in nodes)
    weight = add_constant(graph, np.concatenate([p.weight for p in parts], axis=1), f"{name}.weight")
    scales = [p.scale for p in parts if p.scale is not None]
    if scales:
        scale = add_constant(graph, np.concatenate(scales), f"{name}.scale")
        weight = insert_node(
            first, "DequantizeLinear", [weight, scale], name=f"{name}.dequantize", attributes={"axis": 1}
        )
    whole = insert_node(first, "MatMul", [first.inputs[0], weight], name=f"{name}.matmul")
    biases = [p.bias for p in parts if p.bias is not None]
    if biases:
        bias = add_constant(graph, np.concatenate(biases), f"{name}.bias")
        whole = insert_node(first, "Add", [whole, bias], name=f"{name}.add")
    widths = [p.weight.shape[1] for p in parts]
    split = ir.node("Split", [whole], {"axis": -1}, num_outputs=len(parts), name=f"{name}.split")
    if opset_of(model) < _AXES_AS_INPUTS:
        split.attributes["split"] = ir.AttrInt64s("split", widths)
    else:
        split.resize_inputs(2)
        split.replace_input_with(1, add_constant(graph, np.array(widths, np.int64), f"{name}.sizes"))
    graph.insert_before(first, split)
    for part, output in zip(parts, split.outputs, strict=True):
        output.name = f"{part.output.name}.packed"
        output.type, output.shape = part.output.type, part.output.shape
        part.output.replace_all_uses_with(output)
