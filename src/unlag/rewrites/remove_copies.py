"""Copies that change nothing: inverse transposes, Identity, casts to and fro, Reshape of Reshape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import constant_array, replace_output, sweep
from unlag.rewrites.element_types import element_types

_ORDER = (
    ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
    ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE,
)  # fmt: skip

_T = ir.DataType
LOSSLESS = frozenset(
    {(_T.BOOL, wide) for wide in _ORDER[1:]}
    | {(_T.UINT8, wide) for wide in (_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE)}
    | {(_T.INT8, wide) for wide in (_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE)}
    | {(_T.INT16, wide) for wide in (_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE)}
    | {(_T.INT32, wide) for wide in (_T.INT64, _T.DOUBLE)}
    | {(_T.FLOAT16, wide) for wide in (_T.FLOAT, _T.DOUBLE)}
    | {(_T.BFLOAT16, wide) for wide in (_T.FLOAT, _T.DOUBLE)}
    | {(_T.FLOAT, _T.DOUBLE)}
)
"""Pairs (from, to) of element types where every value has its own image."""

_FLOATS = frozenset({_T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE})


def remove_copies(model: ir.Model) -> int:
    """T⁻¹(T(x)) = x, and so are Identity(x), a Cast to x's own type, and narrow(wide(x)).

    Two Transposes become one with the composed permutation, a Reshape of a Reshape reads the first one's input,
    Cast(Cast(x)) skips a lossless step. float32 → float16 → float32 changes values and stays.
    """
    changed = 0
    while step := _one_round(model):
        changed += step
        sweep(model)
    return changed


def _one_round(model: ir.Model) -> int:
    types = element_types(model)
    changed = 0
    for node in model.graph:
        if node.domain or not node.inputs or node.inputs[0] is None:
            continue
        match node.op_type:
            case "Identity":
                changed += _skip(node, node.inputs[0])
            case "Transpose":
                changed += _merge_transposes(node)
            case "Cast":
                changed += _merge_casts(node, types)
            case "Reshape":
                changed += _merge_reshapes(node)
    return changed


def _skip(node: ir.Node, source: ir.Value) -> bool:
    """Let the readers of the node read ``source``; not where that would rename an input, a constant or an output."""
    result = node.outputs[0]
    if result.is_graph_output():
        maker = source.producer()
        if maker is None or source.is_graph_output() or maker.graph is not node.graph:
            return False
    if not result.uses() and not result.is_graph_output():
        return False
    replace_output(result, source)
    return True


def _before(node: ir.Node, op_type: str) -> ir.Node | None:
    source = node.inputs[0]
    maker = None if source is None else source.producer()
    return maker if maker is not None and maker.op_type == op_type and not maker.domain else None


def permutation(node: ir.Node) -> tuple[int, ...] | None:
    """The Transpose's permutation, where it is written down."""
    perm = node.attributes.get_ints("perm")
    return None if perm is None else tuple(perm)


def _merge_transposes(node: ir.Node) -> bool:
    perm, first, source = permutation(node), _before(node, "Transpose"), node.inputs[0]
    if perm is None or source is None:
        return False
    if perm == tuple(range(len(perm))):
        return _skip(node, source)
    inner = None if first is None else permutation(first)
    if first is None or inner is None or first.inputs[0] is None:
        return False
    composed = [inner[axis] for axis in perm]
    if composed == sorted(composed):
        return _skip(node, first.inputs[0])
    if len(source.uses()) > 1 or source.is_graph_output():
        return False
    node.attributes["perm"] = ir.AttrInt64s("perm", composed)
    node.replace_input_with(0, first.inputs[0])
    return True


def _merge_casts(node: ir.Node, types: dict[ir.Value, ir.DataType]) -> bool:
    source, to = node.inputs[0], ir.DataType(node.attributes["to"].as_int())
    if source is None:
        return False
    if types.get(source) == to:
        return _skip(node, source)
    first = _before(node, "Cast")
    origin = None if first is None else first.inputs[0]
    start = None if origin is None else types.get(origin)
    middle = types.get(source)
    if origin is None or start is None or (start, middle) not in LOSSLESS:
        return False
    if start == to:
        return _skip(node, origin)
    if to not in _FLOATS:  # a float cast to a narrow integer saturates where an integer wraps around
        return False
    node.replace_input_with(0, origin)
    return True


def _merge_reshapes(node: ir.Node) -> bool:
    first, source = _before(node, "Reshape"), node.inputs[0]
    if first is None or source is None or first.inputs[0] is None or len(source.uses()) > 1 or source.is_graph_output():
        return False
    shape = constant_array(node.inputs[1])
    copies_a_dimension = shape is None or bool(np.any(shape == 0))
    if copies_a_dimension and not node.attributes.get_int("allowzero", 0):
        return False
    node.replace_input_with(0, first.inputs[0])
    return True
