"""Activations that are quantized for nothing stay floats."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from unlag.model.graph import replace_output, sweep
from unlag.rewrites.activation_codes import MOVING
from unlag.rewrites.neighbors import made_by, readers


def remove_quantize_pairs(model: ir.Model, tensors: Collection[str]) -> int:
    """Q⁻¹(Q(x)) ≈ x: readers of the dequantized tensor read x itself.

    Args:
        model: the graph; only its main graph is changed.
        tensors: names of the tensors x. Pairs behind a Reshape or another node that only moves elements of x go too.

    Weights are not touched. Gives the number of pairs that were taken away.
    """
    pairs = [
        (dequantizer, node.inputs[0])
        for node in model.graph
        if node.op_type == "QuantizeLinear" and _comes_from(node.inputs[0], tensors)
        for dequantizer, place in readers(node.outputs[0])
        if dequantizer.op_type == "DequantizeLinear" and place == 0
    ]
    changed = sum(source is not None and _bypass(dequantizer, source) for dequantizer, source in pairs)
    if changed:
        sweep(model)
    return changed


def _comes_from(source: ir.Value | None, tensors: Collection[str]) -> bool:
    """Whether the value is one of the tensors, or moved elements of one.

    Runtimes quantize before they move: what moves there as codes has a pair behind each mover in the file.
    """
    while source is not None and ir.convenience.get_const_tensor(source) is None:
        if source.name in tensors:
            return True
        mover = made_by(source, *MOVING)
        source = None if mover is None else _before_pair(mover.inputs[0])
    return False


def _before_pair(value: ir.Value | None) -> ir.Value | None:
    """The tensor in front of a quantize-dequantize pair; the value itself where there is none."""
    dequantizer = made_by(value, "DequantizeLinear")
    quantizer = None if dequantizer is None else made_by(dequantizer.inputs[0], "QuantizeLinear")
    return value if quantizer is None else quantizer.inputs[0]


def _bypass(dequantizer: ir.Node, source: ir.Value) -> bool:
    """Lead the readers of a DequantizeLinear back to the float tensor."""
    result = dequantizer.outputs[0]
    if not _has_type_of(source, dequantizer) or not (result.uses() or result.is_graph_output()):
        return False
    if result.is_graph_output():
        # The output's name must stay on a value of its own.
        if source.is_graph_input() or source.is_graph_output():
            return False
        replace_output(result, source)
    else:
        result.replace_all_uses_with(source)
    return True


def _has_type_of(source: ir.Value, dequantizer: ir.Node) -> bool:
    """Whether the float tensor has the type of the scale, in which the pair gives it back."""
    scale = ir.convenience.get_const_tensor(dequantizer.inputs[1]) if dequantizer.inputs[1] is not None else None
    return scale is not None and (source.dtype is None or source.dtype == scale.dtype)
