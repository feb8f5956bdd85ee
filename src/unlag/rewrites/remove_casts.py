"""Casts that change nothing: to a value's own type, or to a wider type and back."""

from __future__ import annotations

import onnx_ir as ir

from unlag.model.graph import sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.neighbors import sole_reader
from unlag.rewrites.remove_copies import skip_node

_T = ir.DataType
LOSSLESS = frozenset(
    {
        (_T.BOOL, wide)
        for wide in (
            _T.UINT8, _T.INT8, _T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE,
        )
    }
    | {(_T.UINT8, wide) for wide in (_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE)}
    | {(_T.INT8, wide) for wide in (_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE)}
    | {(_T.INT16, wide) for wide in (_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE)}
    | {(_T.INT32, wide) for wide in (_T.INT64, _T.DOUBLE)}
    | {(_T.FLOAT16, wide) for wide in (_T.FLOAT, _T.DOUBLE)}
    | {(_T.BFLOAT16, wide) for wide in (_T.FLOAT, _T.DOUBLE)}
    | {(_T.FLOAT, _T.DOUBLE)}
)  # fmt: skip
"""Pairs (from, to) of element types where every value has its own image."""

MOVING = frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Expand", "Tile", "Gather"}
)
"""Operators that only move the elements of their first input, so that they work on any type."""

LONGEST_WAY = 6
"""Moving operators between two casts."""

_FLOATS = frozenset({_T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE})


def remove_casts(model: ir.Model) -> int:
    """Cast(x) to x's own type is x, and so is narrow(wide(x)), also where the elements are only moved in between.

    Cast(Cast(x)) skips a lossless step. float32 → float16 → float32 changes values and stays.
    """
    changed = 0
    while step := _one_round(model):
        changed += step
        sweep(model)
    return changed


def _one_round(model: ir.Model) -> int:
    types = element_types(model)
    for node in model.graph:
        if node.op_type == "Cast" and not node.domain and _shorten(node, types):
            return 1  # types and neighbors are read anew after each change
    return 0


def _shorten(node: ir.Node, types: dict[ir.Value, ir.DataType]) -> bool:
    source, to = node.inputs[0], ir.DataType(node.attributes["to"].as_int())
    if source is None:
        return False
    if types.get(source) == to:
        return skip_node(node, source)
    way = _way_back(source)
    first = way[-1].inputs[0] if way else source
    maker = None if first is None else first.producer()
    origin = maker.inputs[0] if maker is not None and maker.op_type == "Cast" and not maker.domain else None
    start = None if origin is None else types.get(origin)
    if first is None or origin is None or start is None or (start, types.get(first)) not in LOSSLESS:
        return False
    if start == to:
        return skip_node(node, origin) if not way else _narrow(node, way, origin, to)
    if way or to not in _FLOATS:  # a float cast to a narrow integer saturates where an integer wraps around
        return False
    node.replace_input_with(0, origin)
    return True


def _way_back(value: ir.Value) -> list[ir.Node]:
    """Moving nodes in front of the value, last one first; each read by nobody else."""
    way: list[ir.Node] = []
    current: ir.Value | None = value
    while current is not None and len(way) < LONGEST_WAY:
        node = current.producer()
        if node is None or node.domain or node.op_type not in MOVING or sole_reader(current) is None:
            break
        way.append(node)
        current = node.inputs[0]
    return way


def _narrow(node: ir.Node, way: list[ir.Node], origin: ir.Value, to: ir.DataType) -> bool:
    """Let the moving nodes work on the narrow type."""
    moved = way[0].outputs[0]
    if not skip_node(node, moved):
        return False
    way[-1].replace_input_with(0, origin)
    for mover in way:
        mover.outputs[0].type = ir.TensorType(to)
    return True
