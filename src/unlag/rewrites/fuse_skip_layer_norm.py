"""Residual additions fused into the LayerNormalization behind them."""

from __future__ import annotations

import onnx_ir as ir

from unlag.model.graph import constant_array, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.neighbors import made_by, sole_reader
from unlag.rewrites.projections import PROJECTIONS

DOMAIN = "com.microsoft"
_NORMS = ("LayerNormalization", "SkipLayerNormalization")
_DEFAULT_EPSILON = 1e-5


def fuse_skip_layer_norm(model: ir.Model) -> int:
    """LayerNormalization(x·W + b + r) becomes SkipLayerNormalization(x·W, r, b): one pass instead of three.

    r must be a residual, the output of another normalization or residual sum, so that it has x·W's shape; an
    embedding that is broadcast over the batch is left alone. Where the sum is read elsewhere too, it comes from
    the operator's fourth output.
    """
    types = element_types(model)
    fused = sum(_fuse(node, types) for node in list(model.graph) if node.op_type == _NORMS[0] and not node.domain)
    if fused:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return fused


def _fuse(norm: ir.Node, types: dict[ir.Value, ir.DataType]) -> bool:
    total, scale = norm.inputs[0], norm.inputs[1]
    add = made_by(total, "Add")
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
    keeps_sum = sole_reader(total) is None
    shift = norm.inputs[2] if len(norm.inputs) > 2 else None
    node = ir.Node(
        DOMAIN,
        "SkipLayerNormalization",
        [projected, residual, scale, shift, *([bias] if bias is not None else [])],
        [ir.AttrFloat32("epsilon", norm.attributes.get_float("epsilon", _DEFAULT_EPSILON) or _DEFAULT_EPSILON)],
        num_outputs=4 if keeps_sum else 1,
        name=f"{norm.name or total.name}.fused",
    )
    _name_outputs(node, norm, keeps_sum=keeps_sum)
    norm.graph.insert_before(norm, node)  # type: ignore[union-attr]  # a node found by walking a graph has one
    replace_output(norm.outputs[0], node.outputs[0])
    if keeps_sum:
        total.replace_all_uses_with(node.outputs[3])
    return True


def _name_outputs(node: ir.Node, norm: ir.Node, *, keeps_sum: bool) -> None:
    node.outputs[0].name = f"{node.name}.out"
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), norm.outputs[0].shape
    if keeps_sum:
        node.outputs[1].name, node.outputs[2].name, node.outputs[3].name = "", "", f"{node.name}.sum"
        node.outputs[3].type = ir.TensorType(ir.DataType.FLOAT)


def _projection_and_residual(add: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None] | None:
    first, second = add.inputs[0], add.inputs[1]
    for ours, other in ((first, second), (second, first)):
        if ours is None or other is None or not _is_residual(other):
            continue
        if made_by(ours, *PROJECTIONS):
            return ours, other, None
        biased = _bias_add(ours)
        if biased is not None:
            return biased[0], other, biased[1]
    return None


def _bias_add(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Product and bias of product + bias, where nobody else reads the sum."""
    add = made_by(value, "Add")
    if add is None or sole_reader(value) is None:
        return None
    for product, bias in (add.inputs, add.inputs[::-1]):
        array = constant_array(bias)
        if (
            array is not None
            and array.ndim == 1
            and array.size > 1
            and made_by(product, *PROJECTIONS)
            and product
            and bias
        ):
            return product, bias
    return None


def _is_residual(value: ir.Value) -> bool:
    """An activation of the stream that every projection is added to."""
    if made_by(value, *_NORMS):
        return True
    add = made_by(value, "Add")
    return add is not None and any(
        made_by(part, *PROJECTIONS) or (part is not None and _bias_add(part)) for part in add.inputs
    )
