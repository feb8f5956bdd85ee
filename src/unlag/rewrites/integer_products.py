"""Products by quantized weights in a model's file: what they multiply, and which value is their float result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.rewrites.neighbors import made_by, sole_reader
from unlag.rewrites.packed_weights import fixed_array, given, scaled, unpacked_blocks
from unlag.rewrites.stored_weights import Array

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class IntegerProduct:
    """``node`` computes ``last`` ≈ ``activation`` · W (+ ``bias``), where W is constant, or ``other`` where that is."""

    node: ir.Node
    activation: ir.Value
    """Float values before they were quantized."""
    other: ir.Value | None
    """The right factor where it is quantized at every run, too."""
    stored: tuple[ir.Value | None, ...]
    """Codes, scale and zero point of a constant weight."""
    weight: Callable[[], Matrix]
    """The dequantized weight; made only when it is needed."""
    shape: tuple[int, ...]
    """Of the weight: [in, out], or [out, in / group, kernel...]; empty with ``other``."""
    bits: int
    bias: ir.Value | None
    last: ir.Value


def find_product(node: ir.Node) -> IntegerProduct | None:
    """The product that starts at this node; nothing where it is none, or not of a form that is known exactly."""
    find = _FORMS.get(node.op_type)
    return None if find is None else find(node)


def _spelled(node: ir.Node) -> IntegerProduct | None:
    """DynamicQuantizeLinear → MatMulInteger or ConvInteger → Cast → Mul by both scales."""
    left = _quantized(node, 0, 2)
    cast = sole_reader(node.outputs[0])
    if left is None or cast is None or cast.op_type != "Cast" or cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        return None
    right = _quantized(node, 1, 3)
    known = {left.outputs[1]} | ({right.outputs[1]} if right is not None else set())
    found = _rescaled(cast.outputs[0], known)
    if found is None:
        return None
    last, scale = found
    activation = left.inputs[0]
    if activation is None:
        return None
    if right is not None:
        other = right.inputs[0]
        both = len(known) == 2 and scale is None and node.op_type == "MatMulInteger"
        return _dynamic(node, activation, other, last) if both and other is not None else None
    return _constant(node, activation, (given(node, 1), scale, given(node, 3)), None, last)


def _quantized(node: ir.Node, index: int, zero_index: int) -> ir.Node | None:
    """The DynamicQuantizeLinear that makes an input and its zero point."""
    maker = made_by(node.inputs[index], "DynamicQuantizeLinear")
    same = maker is not None and node.inputs[index] is maker.outputs[0] and given(node, zero_index) is maker.outputs[2]
    return maker if same else None


def _rescaled(value: ir.Value, needed: set[ir.Value]) -> tuple[ir.Value, ir.Value | None] | None:
    """Follow one or two Mul behind the Cast until all of ``needed`` and at most one constant were multiplied in."""
    open_scales, constants = set(needed), []
    while True:
        step = sole_reader(value)
        if step is None or step.op_type != "Mul" or len(step.inputs) != 2:
            return None
        factor = step.inputs[1] if step.inputs[0] is value else step.inputs[0]
        for part in _factors(factor):
            if part in open_scales:
                open_scales.discard(part)
            elif part is not None and fixed_array(part) is not None:
                constants.append(part)
            else:
                return None
        value = step.outputs[0]
        if not open_scales and len(constants) == 2 - len(needed):
            return value, constants[0] if constants else None
        if len(constants) > 1 or len(needed) - len(open_scales) + len(constants) > 1:
            return None


def _factors(value: ir.Value | None) -> list[ir.Value | None]:
    product = made_by(value, "Mul")
    return [value] if product is None else list(product.inputs)


def _dynamic(node: ir.Node, activation: ir.Value, other: ir.Value, last: ir.Value) -> IntegerProduct:
    def nothing() -> Matrix:
        raise ValueError(f"{node.name} has no constant weight")

    return IntegerProduct(node, activation, other, (), nothing, (), 8, None, last)


def _constant(
    node: ir.Node,
    activation: ir.Value,
    stored: tuple[ir.Value | None, ir.Value | None, ir.Value | None],
    bias: ir.Value | None,
    last: ir.Value,
) -> IntegerProduct | None:
    """A product by 8-bit codes, with a scale (and zero point) for all of them or for each output column."""
    codes, scale = fixed_array(stored[0]), fixed_array(stored[1])
    zero = None if stored[2] is None else fixed_array(stored[2])
    if codes is None or scale is None or scale.dtype != np.float32 or (stored[2] is not None and zero is None):
        return None
    if codes.dtype not in (np.int8, np.uint8) or codes.ndim < 2:
        return None
    axis = 0 if node.op_type == "ConvInteger" else codes.ndim - 1
    if not _is_along(scale, codes, axis) or scaled(codes[:1] if axis else codes, scale, zero, axis) is None:
        return None

    def weight() -> Matrix:
        matrix = scaled(codes, scale, zero, axis)
        if matrix is None:
            raise ValueError(f"{node.name}: scale and codes do not fit")
        return matrix

    return IntegerProduct(node, activation, None, stored, weight, codes.shape, 8, bias, last)


def _is_along(scale: Array, codes: Array, axis: int) -> bool:
    """Whether a scale that multiplies the *output* is one for each output column or channel."""
    if scale.size == 1:
        return True
    if axis:  # a matrix: columns are the last axis, of the weight and of the output
        return bool(scale.shape[-1] == scale.size == codes.shape[axis])
    spatial = (1,) * (codes.ndim - 2)
    return scale.shape in {(codes.shape[0], *spatial), (1, codes.shape[0], *spatial)}


def _fused(node: ir.Node) -> IntegerProduct | None:
    """DynamicQuantizeMatMul(A, B, b_scale, b_zero, bias)."""
    activation = node.inputs[0]
    if activation is None:
        return None
    return _constant(
        node, activation, (given(node, 1), given(node, 2), given(node, 3)), given(node, 4), node.outputs[0]
    )


def _to_float(node: ir.Node) -> IntegerProduct | None:
    """MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero, b_zero, bias), where A was quantized right before."""
    maker = made_by(node.inputs[0], "DynamicQuantizeLinear")
    if maker is None or [node.inputs[0], given(node, 2), given(node, 4)] != list(maker.outputs):
        return None
    activation = maker.inputs[0]
    if activation is None:
        return None
    return _constant(
        node, activation, (given(node, 1), given(node, 3), given(node, 5)), given(node, 6), node.outputs[0]
    )


def _blocks(node: ir.Node) -> IntegerProduct | None:
    """MatMulNBits(A, B, scales, zeros, order, bias) on float32."""
    matrix, activation, scales = unpacked_blocks(node), node.inputs[0], fixed_array(given(node, 2))
    if matrix is None or activation is None or scales is None or scales.dtype != np.float32:
        return None
    stored = (given(node, 1), given(node, 2), given(node, 3))
    bits = node.attributes.get_int("bits", 4) or 4
    return IntegerProduct(
        node, activation, None, stored, lambda: matrix, matrix.shape, bits, given(node, 5), node.outputs[0]
    )


_FORMS: dict[str, Callable[[ir.Node], IntegerProduct | None]] = {
    "MatMulInteger": _spelled,
    "ConvInteger": _spelled,
    "DynamicQuantizeMatMul": _fused,
    "MatMulIntegerToFloat": _to_float,
    "MatMulNBits": _blocks,
}
