"""Copies that change nothing: inverse transposes, Identity, Reshape of Reshape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import constant_array, replace_output, sweep


def remove_copies(model: ir.Model) -> int:
    """T⁻¹(T(x)) = x, and so is Identity(x).

    Two Transposes become one with the composed permutation, a Reshape of a Reshape reads the first one's input.
    """
    changed = 0
    while step := _one_round(model):
        changed += step
        sweep(model)
    return changed


def _one_round(model: ir.Model) -> int:
    changed = 0
    for node in model.graph:
        if node.domain or not node.inputs or node.inputs[0] is None:
            continue
        match node.op_type:
            case "Identity":
                changed += skip_node(node, node.inputs[0])
            case "Transpose":
                changed += _merge_transposes(node)
            case "Reshape":
                changed += _merge_reshapes(node)
    return changed


def skip_node(node: ir.Node, source: ir.Value) -> bool:
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
        return skip_node(node, source)
    inner = None if first is None else permutation(first)
    if first is None or inner is None or first.inputs[0] is None:
        return False
    composed = [inner[axis] for axis in perm]
    if composed == sorted(composed):
        return skip_node(node, first.inputs[0])
    if len(source.uses()) > 1 or source.is_graph_output():
        return False
    node.attributes["perm"] = ir.AttrInt64s("perm", composed)
    node.replace_input_with(0, first.inputs[0])
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
