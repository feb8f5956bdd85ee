"""Coarse codes replaced by finer ones, made from the standard's float weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, opset_of, sweep
from unlag.rewrites.neighbors import sole_reader
from unlag.rewrites.stored_weights import Array, Weight, chain_nodes, constant_type, read_weights, stored_codes

LARGEST_CODE = 127
MIDDLE_CODE = 128
"""Zero point of unsigned codes."""
_SCALES_BY_COLUMN = 13
"""The opset from which on DequantizeLinear takes more than one scale."""


class Source(Protocol):
    """Where the standard keeps a weight: columns start to stop of the matrix that is read as ``name``."""

    @property
    def name(self) -> str: ...  # noqa: D102 - said above
    @property
    def start(self) -> int: ...  # noqa: D102
    @property
    def stop(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class _Coarse:
    """A chain of codes with one scale for the whole matrix."""

    scaling: ir.Node
    """DequantizeLinear, or the Mul by the scale."""
    shift: ir.Node | None
    """The Sub of the zero point, in the spelled-out form."""
    holder: ir.Node
    """The node that reads the codes, at its first input."""
    codes: ir.Value
    axis: int
    """Axis of the codes that runs over the output columns."""


def requantize_from(model: ir.Model, standard: ir.Model, weights: Mapping[str, Source]) -> int:
    """W ≈ s·C with one s for the matrix becomes W[:, j] ≈ s[j]·C[:, j], s[j] = max|W[:, j]| / 127, of the standard's W.

    ``weights`` says where the standard keeps what the variant reads, by the name of the value that is read.
    Works on DequantizeLinear, on Cast, Sub and Mul, and on tables whose rows are dequantized after the look-up.
    """
    originals = {str(weight.read.name): weight for weight in read_weights(standard)}
    changed = 0
    for weight in list(read_weights(model)):
        source = weights.get(str(weight.read.name))
        original = originals.get(source.name) if source is not None else None
        coarse = _coarse_chain(weight)
        if source is None or original is None or coarse is None:
            continue
        if coarse.scaling.op_type == "DequantizeLinear" and opset_of(model) < _SCALES_BY_COLUMN:
            continue
        matrix = original.matrix()
        if matrix is not None:
            changed += _requantize(model.graph, coarse, matrix[:, source.start : source.stop].astype(np.float32))
    if changed:
        sweep(model)
    return changed


def _coarse_chain(weight: Weight) -> _Coarse | None:
    if weight.role == "table" and constant_type(weight.read) is not None:
        return _coarse_table(weight)
    nodes, codes = chain_nodes(weight.read) or [], stored_codes(weight.read)
    scalings = [n for n in nodes if n.op_type in {"DequantizeLinear", "Mul"}]
    shifts = [n for n in nodes if n.op_type == "Sub"]
    holder = None if codes is None else sole_reader(codes)
    if codes is None or holder is None or len(scalings) != 1 or len(shifts) > 1:
        return None
    scale = constant_array(scalings[0].inputs[1])
    if scale is None or scale.size != 1 or any(len(n.outputs[0].uses()) != 1 for n in nodes[1:]):
        return None
    turned = sum(n.op_type == "Transpose" for n in nodes) % 2 == 1
    axis = 0 if turned != weight.transposed else 1
    return _Coarse(scalings[0], shifts[0] if shifts else None, holder, codes, axis)


def _coarse_table(weight: Weight) -> _Coarse | None:
    """int8 table → Gather → DequantizeLinear with one scale."""
    after = sole_reader(weight.reader.outputs[0])
    if after is None or after.op_type != "DequantizeLinear" or sole_reader(weight.read) is None:
        return None
    scale = constant_array(after.inputs[1])
    return _Coarse(after, None, weight.reader, weight.read, -1) if scale is not None and scale.size == 1 else None


def _requantize(graph: ir.Graph, coarse: _Coarse, matrix: npt.NDArray[np.float32]) -> bool:
    """Write new codes, scale and zero point into the chain; nothing is touched where the shapes don't agree."""
    old, scale = constant_array(coarse.codes), constant_array(coarse.scaling.inputs[1])
    values = matrix.T if coarse.axis == 0 else matrix
    if old is None or scale is None or old.shape != values.shape or old.dtype not in (np.int8, np.uint8):
        return False
    spelled, unsigned = coarse.scaling.op_type == "Mul", old.dtype == np.uint8
    if spelled and unsigned and coarse.shift is None:
        return False
    codes, scales = quantize_columns(values, coarse.axis)
    shifted = (codes.astype(np.int16) + MIDDLE_CODE).astype(np.uint8) if unsigned else codes
    name = str(coarse.codes.name)
    coarse.holder.replace_input_with(0, add_constant(graph, shifted, f"{name}.by_column"))
    if spelled:
        _write_spelled(graph, coarse, scales.astype(scale.dtype), name, MIDDLE_CODE if unsigned else 0)
    else:
        _write_dequantize(graph, coarse, scales.reshape(-1).astype(scale.dtype), name, unsigned=unsigned)
    return True


def _write_spelled(graph: ir.Graph, coarse: _Coarse, scales: Array, name: str, middle: int) -> None:
    coarse.scaling.replace_input_with(1, add_constant(graph, scales, f"{name}.scale_by_column"))
    if coarse.shift is not None:
        zero = np.full((), middle, scales.dtype)
        coarse.shift.replace_input_with(1, add_constant(graph, zero, f"{name}.zero"))


def _write_dequantize(graph: ir.Graph, coarse: _Coarse, scales: Array, name: str, *, unsigned: bool) -> None:
    node = coarse.scaling
    node.replace_input_with(1, add_constant(graph, scales, f"{name}.scale_by_column"))
    if len(node.inputs) > 2:
        zeros = np.full(scales.shape, MIDDLE_CODE, np.uint8) if unsigned else np.zeros(scales.shape, np.int8)
        node.replace_input_with(2, add_constant(graph, zeros, f"{name}.zero_by_column"))
    elif unsigned:
        node.resize_inputs(3)
        node.replace_input_with(
            2, add_constant(graph, np.full(scales.shape, MIDDLE_CODE, np.uint8), f"{name}.zero_by_column")
        )
    node.attributes["axis"] = ir.AttrInt64("axis", coarse.axis)
    node.attributes.pop("block_size", None)


def quantize_columns(
    values: npt.NDArray[np.float32], axis: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric codes, and one scale for each index of ``axis``, shaped to broadcast against them."""
    others = tuple(a for a in range(values.ndim) if a != axis % values.ndim)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scales = np.maximum(largest, np.finfo(np.float32).tiny) / LARGEST_CODE
    codes = np.clip(np.rint(values / scales), -LARGEST_CODE, LARGEST_CODE).astype(np.int8)
    return codes, scales.astype(np.float32)
