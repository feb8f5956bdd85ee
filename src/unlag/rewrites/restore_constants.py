"""Numbers that belong to a network's function, compared operator by operator with the standard's."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from unlag.model.facts import Attribute, GraphFacts, GraphIndex, Node, facts_of
from unlag.model.graph import add_constant, constant_array, sweep

_FAMILIES = {
    "SkipLayerNormalization": "LayerNormalization",
    "EmbedLayerNormalization": "LayerNormalization",
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
    "RMSNormalization": "SimplifiedLayerNormalization",
}
"""Fused operators that carry the constant of another one."""

_ATTRIBUTES: dict[str, dict[str, int | float | str]] = {
    "LayerNormalization": {"epsilon": 1e-5},
    "SimplifiedLayerNormalization": {"epsilon": 1e-5},
    "BatchNormalization": {"epsilon": 1e-5},
    "InstanceNormalization": {"epsilon": 1e-5},
    "GroupNormalization": {"epsilon": 1e-5},
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Celu": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Selu": {"alpha": 1.6732632, "gamma": 1.0507010},
    "LRN": {"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    "Gelu": {"approximate": "none"},
}
"""Attributes that are part of the function, with the values that they have where they are absent."""

_SCALARS = {"Clip": (1, 2), "Where": (1, 2), "Add": (0, 1), "Sub": (0, 1), "Mul": (0, 1), "Div": (0, 1), "Pow": (1,)}
"""Operators whose constant inputs of one element are part of the function, and these inputs."""

_ROUNDING = 5e-3
"""Relative; bfloat16 rounds by up to 2e-3, float16 by 5e-4."""
_SMALLEST = 2e-7
"""What float16 can't hold is raised to 6e-8 or 1e-7 by converters."""
_HIDING = 1e3
"""Numbers beyond it hide what a Softmax must not see; how far beyond makes no difference."""

Value = int | float | str


class Difference(NamedTuple):
    """A number that differs: at the variant's node, in an attribute or at an input."""

    node: Node
    place: str | int
    """The attribute's name, or the input's number."""
    ours: Value
    theirs: Value


class Comparison(NamedTuple):
    """Numbers that differ, and how many could be compared."""

    differences: tuple[Difference, ...]
    compared: int


def compare_constants(variant: GraphFacts, standard: GraphFacts) -> Comparison:
    """Compare the numbers of operators that both graphs have equally many of, in the graphs' order.

    Scales of attention scores are left out: they have a cause of their own.
    """
    differences: list[Difference] = []
    compared = 0
    ours, theirs = _numbers(variant), _numbers(standard)
    for key, mine in ours.items():
        others = theirs.get(key, [])
        if len(mine) != len(others):
            continue
        compared += len(mine)
        if _same_in_some_order([v for _n, _p, v in mine], [v for _n, _p, v in others]):
            continue
        pairs = zip(mine, others, strict=True)
        differences += [Difference(n, p, v, w) for (n, p, v), (_n, _p, w) in pairs if not _same(v, w)]
    return Comparison(tuple(differences), compared)


def _numbers(facts: GraphFacts) -> dict[str, list[tuple[Node, str | int, Value]]]:
    """Each number with its place, by the kind of operator and place."""
    index = GraphIndex(facts)
    found: dict[str, list[tuple[Node, str | int, Value]]] = {}
    for node in facts.nodes:
        family = _FAMILIES.get(node.op_type, node.op_type)
        for name, default in _ATTRIBUTES.get(family, {}).items():
            value: Attribute = node.attributes.get(name, default)
            if not isinstance(value, list):
                found.setdefault(f"{family} {name}", []).append((node, name, value))
        if node.domain or _is_attention_scale(index, node):
            continue
        for place in _SCALARS.get(node.op_type, ()):
            number = _float_scalar(index, node.inputs[place]) if place < len(node.inputs) else None
            if number is not None:
                found.setdefault(_role(index, node, place), []).append((node, place, number))
    return found


def _role(index: GraphIndex, node: Node, place: int) -> str:
    """What a constant is for: its operator and place, and the operators around, so that like is compared with like."""
    makers = sorted(maker.op_type for name in node.inputs if (maker := index.producer(name)) is not None)
    readers = sorted(reader.op_type for reader in index.consumers.get(node.outputs[0], []))
    side = "" if node.op_type in {"Add", "Mul"} else place
    return f"{node.op_type} {side} behind {' '.join(makers)}, before {' '.join(readers)}"


def _float_scalar(index: GraphIndex, name: str) -> float | None:
    constant = index.constant(name)
    if constant is None or not constant.dtype.startswith(("float", "bfloat", "double")):
        return None
    return index.scalar(name)


def _is_attention_scale(index: GraphIndex, node: Node) -> bool:
    """Whether the node scales what comes from a product or goes into one."""
    if node.op_type not in {"Mul", "Div"}:
        return False
    around = [index.producer(name) for name in node.inputs] + index.consumers.get(node.outputs[0], [])
    return any(other is not None and other.op_type in {"MatMul", "Transpose", "FusedMatMul"} for other in around)


def _same(ours: Value, theirs: Value) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours == theirs
    if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
        return True
    if min(abs(ours), abs(theirs)) >= _HIDING and (ours > 0) == (theirs > 0):
        return True
    return abs(ours - theirs) <= max(_ROUNDING * max(abs(ours), abs(theirs)), _SMALLEST)


def _same_in_some_order(ours: list[Value], theirs: list[Value]) -> bool:
    """Exporters may write parallel branches in another order."""
    left, right = sorted(ours, key=repr), sorted(theirs, key=repr)
    return all(_same(v, w) for v, w in zip(left, right, strict=True))


def restore_constants(model: ir.Model, standard: ir.Model) -> int:
    """Give the standard's numbers to the operators of the main graph that have others."""
    found = [d for d in compare_constants(facts_of(model), facts_of(standard)).differences if d.node.depth == 0]
    by_output = {str(node.outputs[0].name): node for node in model.graph}
    for difference in found:
        _restore(model.graph, by_output[difference.node.outputs[0]], difference)
    if found:
        sweep(model)
    return len(found)


def _restore(graph: ir.Graph, node: ir.Node, difference: Difference) -> None:
    place, value = difference.place, difference.theirs
    if isinstance(place, str):
        attribute = ir.AttrString(place, value) if isinstance(value, str) else ir.AttrFloat32(place, float(value))
        node.attributes[place] = attribute
        return
    old = constant_array(node.inputs[place])
    if old is None or isinstance(value, str):
        raise ValueError(f"input {place} of {node.name} is no constant")
    restored = np.full(old.shape, value, old.dtype)
    node.replace_input_with(place, add_constant(graph, restored, f"{node.name or node.outputs[0].name}.restored"))
