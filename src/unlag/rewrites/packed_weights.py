"""Codes of integer and block-packed operators as the float weights that they stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.graph import constant_array

Array = npt.NDArray[np.generic]


def fixed_array(value: ir.Value | None) -> Array | None:
    """The array of a constant that no caller can override."""
    return None if value is None or value.is_graph_input() else constant_array(value)


def given(node: ir.Node, index: int) -> ir.Value | None:
    """An input, or nothing where it is left out."""
    return node.inputs[index] if len(node.inputs) > index else None


def scaled(codes: Array, scale: Array, zero: Array | None, axis: int) -> npt.NDArray[np.float32] | None:
    """(codes − zero) · scale in float32. Scale and zero are one number, or one for each index of ``axis``."""
    parts = []
    for part in (scale, np.zeros((), np.int32) if zero is None else zero):
        spread = _along(part, codes, axis)
        if spread is None:
            return None
        parts.append(spread.astype(np.float32))
    return ((codes.astype(np.float32) - parts[1]) * parts[0]).astype(np.float32)


def _along(part: Array, codes: Array, axis: int) -> Array | None:
    if part.size == 1:
        return part.reshape(())
    if part.size != codes.shape[axis]:
        return None
    shape = [1] * codes.ndim
    shape[axis] = -1
    return part.reshape(shape)


def unpacked_blocks(node: ir.Node) -> npt.NDArray[np.float32] | None:
    """The [K, N] matrix of a MatMulNBits: B is [N, blocks, bytes], the low bits of a byte first.

    Nothing where the codes are not constant, grouped by an index, or of a number of bits that does not divide a byte.
    """
    k, n, bits, block = (node.attributes.get_int(name, 0) for name in ("K", "N", "bits", "block_size"))
    bits = bits or 4
    codes, scales, order = fixed_array(given(node, 1)), fixed_array(given(node, 2)), given(node, 3)
    if codes is None or scales is None or bits not in {2, 4, 8} or not block or given(node, 4) is not None:
        return None
    blocks = -(-k // block)
    if codes.dtype != np.uint8 or codes.size * 8 != n * blocks * block * bits or scales.size != n * blocks:
        return None
    values = _spread(codes.reshape(-1), bits).reshape(n, blocks, block).astype(np.float32)
    zero = _block_zeros(order, (n, blocks), bits)
    if zero is None:
        return None
    matrix = (values - zero[..., None]) * scales.reshape(n, blocks, 1).astype(np.float32)
    return np.ascontiguousarray(matrix.reshape(n, blocks * block)[:, :k].T)


def _block_zeros(value: ir.Value | None, shape: tuple[int, int], bits: int) -> npt.NDArray[np.float32] | None:
    """Zero points [N, blocks]: packed like the codes with each row filled up to a byte, or floats, or the middle."""
    if value is None:
        return np.full(shape, 1 << (bits - 1), np.float32)
    zeros = fixed_array(value)
    if zeros is None:
        return None
    n, blocks = shape
    if zeros.dtype != np.uint8:
        return zeros.reshape(shape).astype(np.float32) if zeros.size == n * blocks else None
    row_bytes = -(-blocks * bits // 8)
    if zeros.size != n * row_bytes:
        return None
    return _spread(zeros.reshape(n, row_bytes), bits)[:, :blocks].astype(np.float32)


def _spread(packed: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Each byte of the last axis as 8 / bits codes, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1).astype(np.uint8)


def unpacked_recurrence(node: ir.Node, index: int) -> npt.NDArray[np.float32] | None:
    """W (index 1) or R (index 2) of a DynamicQuantizeLSTM as LSTM takes it: [directions, 4·hidden, rows]."""
    codes = fixed_array(given(node, index))
    scale, zero = (fixed_array(given(node, 6 + 2 * index + offset)) for offset in (0, 1))
    if codes is None or codes.ndim != 3 or scale is None or zero is None:
        return None
    directions, _rows, columns = codes.shape
    if any(part.size not in {directions, directions * columns} for part in (scale, zero)):
        return None
    scale, zero = (part.reshape(directions, 1, -1).astype(np.float32) for part in (scale, zero))
    return np.ascontiguousarray(((codes.astype(np.float32) - zero) * scale).transpose(0, 2, 1))
