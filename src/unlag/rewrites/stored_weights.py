"""Constant weights as a graph stores them: codes, scales, casts and transposes in front of the node that reads them.

Everything here looks at values; nothing is edited. A *chain* is a value whose every ancestor is constant and
whose nodes only undo a storage form: DequantizeLinear, Cast, Mul and Sub by constants, Transpose, Identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import SMALL
from unlag.model.graph import constant_array
from unlag.rewrites.neighbors import sole_reader

Array = npt.NDArray[np.generic]

CODE_TYPES = frozenset(
    {
        ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4,
        ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT16, ir.DataType.UINT16,
        ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2,
    }
)  # fmt: skip
"""Element types that quantized weights are stored in."""

FLOAT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16})

_STORAGE_OPS = frozenset({"DequantizeLinear", "Cast", "Mul", "Sub", "Transpose", "Identity"})
_LONGEST_CHAIN = 8


def constant_type(value: ir.Value | None) -> ir.DataType | None:
    """Element type of a constant value; nothing where the value is not constant."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.dtype


def chain_nodes(value: ir.Value) -> list[ir.Node] | None:
    """Nodes of the chain that ends in ``value``, last one first; empty for a constant, nothing if it is no chain."""
    nodes: list[ir.Node] = []
    open_values = [value]
    while open_values:
        current = open_values.pop()
        if constant_type(current) is not None:
            continue
        node = current.producer()
        if node is None or node.domain or node.op_type not in _STORAGE_OPS or len(nodes) == _LONGEST_CHAIN:
            return None
        nodes.append(node)
        open_values += [v for v in node.inputs if v is not None]
    return nodes


def stored_codes(value: ir.Value) -> ir.Value | None:
    """The one constant of quantized codes that the chain in front of ``value`` starts from."""
    nodes = chain_nodes(value)
    if not nodes:
        return None
    starts = [
        v
        for node in nodes
        for v in node.inputs
        if v is not None and constant_type(v) in CODE_TYPES and _size(v) > SMALL
    ]
    return starts[0] if len(starts) == 1 else None


def _size(value: ir.Value) -> int:
    tensor = ir.convenience.get_const_tensor(value)
    return 0 if tensor is None else tensor.size


def weight_array(value: ir.Value) -> Array | None:
    """What a constant or a chain evaluates to, in the arithmetic that the runtime would use."""
    array = constant_array(value)
    if array is not None:
        return array
    nodes = chain_nodes(value)
    if not nodes:
        return None
    return _evaluate(nodes[0])


def _evaluate(node: ir.Node) -> Array | None:
    if node.op_type == "DequantizeLinear":
        return _dequantize(node)
    arrays = [None if v is None else weight_array(v) for v in node.inputs]
    if not arrays or any(a is None for a in arrays):
        return None
    first, *rest = (np.asarray(a) for a in arrays)
    result: Array | None = None
    match node.op_type:
        case "Identity":
            result = first
        case "Transpose":
            result = np.transpose(first, node.attributes.get_ints("perm"))
        case "Cast":
            result = _cast(first, node.attributes.get_int("to"))
        case "Mul" | "Sub" if len(rest) == 1 and rest[0].dtype == first.dtype:
            result = first * rest[0] if node.op_type == "Mul" else first - rest[0]
    return result


def _cast(array: Array, to: int | None) -> Array | None:
    target = ir.DataType(to) if to is not None else None
    if target not in FLOAT_TYPES and target not in {ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT64}:
        return None
    return array.astype(target.numpy())


def _dequantize(node: ir.Node) -> Array | None:
    """(codes − zero point) · scale, computed in float32 and rounded once to the scale's type."""
    parts = [None if v is None else constant_array(v) for v in node.inputs]
    if (
        len(parts) < 2
        or parts[0] is None
        or parts[1] is None
        or (len(parts) > 2 and node.inputs[2] is not None and parts[2] is None)
    ):
        return None
    codes, scale = parts[0], parts[1]
    zero = parts[2] if len(parts) > 2 and parts[2] is not None else np.zeros((), np.int32)
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    wide = codes.astype(np.float32) - _along(zero.astype(np.float32), codes, axis, block)
    return (wide * _along(scale.astype(np.float32), codes, axis, block)).astype(scale.dtype)


def _along(part: npt.NDArray[np.float32], codes: Array, axis: int, block: int) -> npt.NDArray[np.float32]:
    """Scale or zero point, brought to a shape that broadcasts against the codes."""
    if part.size == 1:
        return part.reshape(())
    if block:
        return np.repeat(part, block, axis=axis).take(range(codes.shape[axis]), axis=axis)
    shape = [1] * codes.ndim
    shape[axis] = -1
    return part.reshape(shape)


Role = Literal["matrix", "table"]


@dataclass(frozen=True)
class Weight:
    """A weight as one node reads it: ``read`` is the value at that node's input."""

    read: ir.Value
    reader: ir.Node
    role: Role
    transposed: bool
    """The reader takes [out, in] (Gemm with transB); ``matrix()`` is [in, out] all the same."""

    def matrix(self) -> Array | None:
        """The [in, out] matrix, or the [rows, width] table, dequantized."""
        array = weight_array(self.read)
        if self.role == "table" and array is not None and constant_type(self.read) in CODE_TYPES:
            array = self._widened_table(array)
        if array is None or array.ndim != 2:
            return None
        return array.T if self.transposed else array

    def _widened_table(self, codes: Array) -> Array | None:
        """A table whose rows are dequantized after the look-up, by one scale for all of it."""
        after = sole_reader(self.reader.outputs[0])
        if after is None or after.op_type != "DequantizeLinear":
            return None
        scale = constant_array(after.inputs[1])
        zero = constant_array(after.inputs[2]) if len(after.inputs) > 2 else np.zeros((), np.int8)
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        return (codes.astype(np.float32) - np.float32(zero.item())) * np.float32(scale.item())


def read_weights(model: ir.Model) -> Iterator[Weight]:
    """Every constant or chained matrix that a MatMul, Gemm or Gather of the main graph reads; once for each value."""
    seen: set[ir.Value] = set()
    for node in model.graph:
        found = _weight_of(node)
        if found is not None and found.read not in seen:
            seen.add(found.read)
            yield found


def _weight_of(node: ir.Node) -> Weight | None:
    index = {"MatMul": 1, "Gemm": 1, "FusedMatMul": 1, "Attention": 1, "Gather": 0}.get(node.op_type)
    if (
        index is None
        or len(node.inputs) <= index
        or (node.op_type == "Gather" and node.attributes.get_int("axis", 0) != 0)
    ):
        return None
    value = node.inputs[index]
    if value is None or chain_nodes(value) is None or not _is_matrix(value):
        return None
    transposed = bool(node.attributes.get_int("transB", 0))
    return Weight(value, node, "table" if node.op_type == "Gather" else "matrix", transposed)


def _is_matrix(value: ir.Value) -> bool:
    """Two axes and more than a few elements, judged from the constant the chain starts from."""
    start: ir.Value | None = value
    while start is not None and (tensor := ir.convenience.get_const_tensor(start)) is None:
        maker = start.producer()
        start = maker.inputs[0] if maker is not None and maker.inputs else None
    return start is not None and tensor is not None and len(tensor.shape) == 2 and tensor.size > SMALL
