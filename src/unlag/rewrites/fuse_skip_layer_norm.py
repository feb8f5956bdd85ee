"""Residual additions fused into the normalization behind them."""

from __future__ import annotations

import onnx_ir as ir

from unlag.model.graph import constant_array, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.neighbors import made_by, sole_reader
from unlag.rewrites.projections import PROJECTIONS
from unlag.rewrites.stored_weights import chain_nodes

DOMAIN = "com.microsoft"
_FUSED = {
    "LayerNormalization": "SkipLayerNormalization",
    "SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
}
_NORMS = (*_FUSED, *_FUSED.values(), "EmbedLayerNormalization")
_DEFAULT_EPSILON = 1e-5
_INTEGER_PRODUCTS = frozenset({"MatMulInteger"})
_RESCALING = frozenset({"Cast", "Identity", "Mul", "QuantizeLinear", "DequantizeLinear"})
_LONGEST_PATH = 8
_SUM_OUTPUT = 3


def fuse_skip_layer_norm(model: ir.Model) -> int:
    """LayerNormalization(x·W + b + r) becomes SkipLayerNormalization(x·W, r, b): one pass instead of three.

    r must be a residual, the output of another normalization or residual sum, so that it has x·W's shape; an
    embedding that is broadcast over the batch is left alone. Where the sum is read elsewhere too, it comes from
    the operator's fourth output. A sum that is rounded to codes in between is not rounded any more.
    """
    types = element_types(model)
    fused = sum(_fuse(node, types) for node in list(model.graph) if node.op_type in _FUSED and not node.domain)
    if fused:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return fused


def _fuse(norm: ir.Node, types: dict[ir.Value, ir.DataType]) -> bool:
    total, scale = norm.inputs[0], norm.inputs[1]
    add = made_by(_before_pair(total), "Add")
    if (
        total is None
        or add is None
        or scale is None
        or norm.attributes.get_int("axis", -1) != -1
        or len(norm.outputs) > 1
    ):
        return False
    if types.get(scale) != ir.DataType.FLOAT or total.is_graph_output() or norm.graph is not add.graph:
        return False
    parts = _projection_and_residual(add)
    if parts is None:
        return False
    projected, residual, bias = parts
    if any(types.get(v, v.dtype) != ir.DataType.FLOAT for v in parts if v is not None):
        return False
    keeps_sum = sole_reader(total) is None
    shift = norm.inputs[2] if len(norm.inputs) > 2 else None
    rows: list[ir.Value | None] = [scale, shift] if norm.op_type == "LayerNormalization" else [scale]
    node = ir.Node(
        DOMAIN,
        _FUSED[norm.op_type],
        [projected, residual, *rows, *([bias] if bias is not None else [])],
        [ir.AttrFloat32("epsilon", norm.attributes.get_float("epsilon", _DEFAULT_EPSILON) or _DEFAULT_EPSILON)],
        num_outputs=_SUM_OUTPUT + 1 if keeps_sum else 1,
        name=f"{norm.name or total.name}.fused",
    )
    _name_outputs(node, norm, keeps_sum=keeps_sum)
    norm.graph.insert_before(norm, node)  # type: ignore[union-attr]  # a node found by walking a graph has one
    replace_output(norm.outputs[0], node.outputs[0])
    if keeps_sum:
        total.replace_all_uses_with(node.outputs[_SUM_OUTPUT])
    return True


def _name_outputs(node: ir.Node, norm: ir.Node, *, keeps_sum: bool) -> None:
    node.outputs[0].name = f"{node.name}.out"
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), norm.outputs[0].shape
    if keeps_sum:
        for unused in node.outputs[1:_SUM_OUTPUT]:
            unused.name = ""
        node.outputs[_SUM_OUTPUT].name = f"{node.name}.sum"
        node.outputs[_SUM_OUTPUT].type = ir.TensorType(ir.DataType.FLOAT)


def _projection_and_residual(add: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None] | None:
    first, second = add.inputs[0], add.inputs[1]
    for ours, other in ((first, second), (second, first)):
        if ours is None or other is None or not _is_residual(other):
            continue
        biased = _bias_add(ours)
        if biased is not None:
            return biased[0], other, biased[1]
        if _is_projected(ours):
            return ours, other, None
    return None


def _bias_add(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Product and bias of product + bias, where nobody else reads the sum."""
    add = made_by(value, "Add")
    if add is None or sole_reader(value) is None:
        return None
    for product, bias in (add.inputs, add.inputs[::-1]):
        array = constant_array(bias)
        if array is None or product is None or bias is None:
            continue
        if array.ndim == 1 and array.size > 1 and _is_product(product):
            return product, bias
    return None


def _is_projected(value: ir.Value) -> bool:
    """Whether a value is a product by a weight, with its bias or without, rounded to codes behind it or not."""
    add = made_by(_stored(value), "Add")
    if add is None:
        return _is_product(value)
    pairs = (add.inputs, add.inputs[::-1])
    return any(p is not None and b is not None and _is_product(p) and chain_nodes(b) is not None for p, b in pairs)


def _is_product(value: ir.Value) -> bool:
    """Whether a value is a product by a weight, whose integers or codes are floats again."""
    waiting = [value]
    for _step in range(_LONGEST_PATH):
        if not waiting:
            return False
        node = waiting.pop(0).producer()
        if node is None:
            continue
        if node.op_type in PROJECTIONS or node.op_type in _INTEGER_PRODUCTS:
            return True
        if node.op_type in _RESCALING:
            waiting += [v for v in node.inputs[: 2 if node.op_type == "Mul" else 1] if v is not None]
    return False


def _before_pair(value: ir.Value | None) -> ir.Value | None:
    """The tensor in front of a QuantizeLinear and DequantizeLinear that only this value comes from."""
    dequantize = made_by(value, "DequantizeLinear")
    quantize = None if dequantize is None else made_by(dequantize.inputs[0], "QuantizeLinear")
    source = None if quantize is None else quantize.inputs[0]
    return source if source is not None and sole_reader(source) is not None else value


def _is_residual(value: ir.Value) -> bool:
    """An activation of the stream that every projection is added to."""
    before = _stored(value)
    if made_by(before, *_NORMS):
        return True
    add = made_by(before, "Add")
    return add is not None and any(part is not None and _is_projected(part) for part in add.inputs)


def _stored(value: ir.Value) -> ir.Value:
    """The tensor that codes were made of, whoever else reads it."""
    dequantize = made_by(value, "DequantizeLinear")
    quantize = None if dequantize is None else made_by(dequantize.inputs[0], "QuantizeLinear")
    source = None if quantize is None else quantize.inputs[0]
    return value if source is None else source
