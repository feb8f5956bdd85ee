"""Activation functions of a graph, told by their values however they are spelled, and put in each other's place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import GraphFacts, GraphIndex, Node, facts_of
from unlag.model.graph import insert_node, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.evaluate import Evaluator

Array = npt.NDArray[np.float64]
Build = Callable[[ir.Node, ir.Value, str], ir.Value]

CONTRIB = "com.microsoft"
_X = np.linspace(-8.0, 8.0, 129)
_SIGMOID = 1 / (1 + np.exp(-_X))
_ROUNDING = 2e-5
"""The two kinds of GELU, the nearest functions here, differ by 5e-4."""
_LONGEST_PATH = 7

FUNCTIONS: dict[str, Array] = {
    "Relu": np.maximum(_X, 0),
    "Gelu": np.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in _X]),
    "Gelu by tanh": 0.5 * _X * (1 + np.tanh(math.sqrt(2 / math.pi) * (_X + 0.044715 * _X**3))),
    "QuickGelu": _X / (1 + np.exp(-1.702 * _X)),
    "SiLU": _X * _SIGMOID,
    "HardSwish": _X * np.clip(_X / 6 + 0.5, 0, 1),
    "Relu6": np.clip(_X, 0, 6),
    "Mish": _X * np.tanh(np.logaddexp(_X, 0)),
    "Softplus": np.logaddexp(_X, 0),
}
"""Values on the samples, by name. Gates such as Sigmoid and Tanh alone are not among them."""

_OPERATORS = {
    "Relu": "Relu", "Gelu": "Gelu", "BiasGelu": "Gelu", "FastGelu": "Gelu by tanh", "QuickGelu": "QuickGelu",
    "Mish": "Mish", "Softplus": "Softplus", "HardSwish": "HardSwish", "Swish": "SiLU",
}  # fmt: skip
"""Operators that are a whole activation."""

_CORES = frozenset({"Erf", "Tanh", "Sigmoid", "HardSigmoid", "Clip", "Exp"})
_AROUND = frozenset({"Mul", "Div", "Add", "Sub", "Pow", "Neg", "Reciprocal", "Cast", "Identity", "Softplus", "Exp"})


class Unit(NamedTuple):
    """One activation: its function, and the names of its input and of its result."""

    function: str
    source: str
    result: str
    node: str


def find_units(facts: GraphFacts) -> list[Unit]:
    """Activations of the main graph, in its order."""
    index = GraphIndex(facts)
    units = [_unit_of(index, node) for node in facts.nodes if node.depth == 0]
    found = {unit.result: unit for unit in units if unit is not None}
    inner = {unit.source for unit in found.values() if unit.function == "Mish"}
    return [u for u in found.values() if not (u.function == "Softplus" and _is_inside(index, u, found, inner))]


def _is_inside(index: GraphIndex, unit: Unit, found: dict[str, Unit], inner: set[str]) -> bool:
    """Whether a Softplus is the middle of a Mish."""
    readers = index.consumers.get(unit.result, [])
    return unit.source in inner and any(node.op_type == "Tanh" for node in readers) and len(found) > 1


def _unit_of(index: GraphIndex, node: Node) -> Unit | None:
    name = node.name or node.outputs[0]
    function = _OPERATORS.get(node.op_type)
    if function is not None:
        if node.op_type == "Gelu" and node.attributes.get("approximate") == "tanh":
            function = "Gelu by tanh"
        if node.op_type == "QuickGelu" and abs(_alpha(node) - 1.702) > 1e-3:
            function = "SiLU" if _alpha(node) == 1.0 else None
        return None if function is None else Unit(function, node.inputs[0], node.outputs[0], name)
    if node.op_type not in _CORES or node.domain:
        return None
    matches = [found for source in _sources(index, node.inputs[0]) for found in _matches(index, node, source)]
    if not matches:
        return None
    _length, function, source, result = max(matches, key=lambda match: match[0])
    return Unit(function, source, result, name)


def _matches(index: GraphIndex, core: Node, source: str) -> list[tuple[int, str, str, str]]:
    """Functions of ``source`` that the nodes from the core on compute, with the number of these nodes."""
    found = []
    evaluator = Evaluator(index, {source: _X})
    result = core.outputs[0]
    for length in range(_LONGEST_PATH):
        value = evaluator.value(result)
        if value is None:
            break
        for function, reference in FUNCTIONS.items():
            if _agree(value, reference):
                found.append((length, function, source, result))
        readers = index.consumers.get(result, [])
        if len(readers) != 1 or len(readers[0].outputs) != 1:
            break
        result = readers[0].outputs[0]
    return found


def _agree(value: npt.NDArray[np.generic], reference: Array) -> bool:
    return value.shape == reference.shape and float(np.abs(value.astype(np.float64) - reference).max()) < _ROUNDING


def _alpha(node: Node) -> float:
    value = node.attributes.get("alpha", 1.702)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _sources(index: GraphIndex, name: str) -> list[str]:
    """Values in front of the core that may be the activation's input, the nearest first."""
    found, waiting = [name], [name]
    for _step in range(2 * _LONGEST_PATH):
        if not waiting:
            break
        node = index.producer(waiting.pop(0))
        if node is None or node.op_type not in _AROUND or node.domain:
            continue
        data = [i for i in node.inputs if index.constant(i) is None and i not in found]
        found += data
        waiting += data
    return found


class Replacement(NamedTuple):
    """An activation of the variant, and the function that stands in its place in the standard."""

    unit: Unit
    function: str


def differing_units(variant: GraphFacts, standard: GraphFacts) -> tuple[list[Replacement], int, int]:
    """Activations that are other functions than the standard's in the same place; and how many each side has.

    None where the numbers differ, or where the same functions come in another order.
    """
    ours, theirs = find_units(variant), find_units(standard)
    counts = len(ours), len(theirs)
    if counts[0] != counts[1] or sorted(u.function for u in ours) == sorted(u.function for u in theirs):
        return [], *counts
    pairs = zip(ours, theirs, strict=True)
    return [Replacement(u, other.function) for u, other in pairs if u.function != other.function], *counts


def _operator(op_type: str, domain: str = "") -> Build:
    def build(before: ir.Node, x: ir.Value, name: str) -> ir.Value:
        return insert_node(before, op_type, [x], name=name, domain=domain)

    return build


def _gated(op_type: str, **attributes: float) -> Build:
    """Give x · gate(x)."""

    def build(before: ir.Node, x: ir.Value, name: str) -> ir.Value:
        gate = insert_node(before, op_type, [x], name=f"{name}.gate", attributes=attributes)
        return insert_node(before, "Mul", [x, gate], name=name)

    return build


def _mish(before: ir.Node, x: ir.Value, name: str) -> ir.Value:
    soft = insert_node(before, "Softplus", [x], name=f"{name}.soft")
    gate = insert_node(before, "Tanh", [soft], name=f"{name}.gate")
    return insert_node(before, "Mul", [x, gate], name=name)


_BUILDERS: dict[str, Build] = {
    "Relu": _operator("Relu"),
    "Gelu": _operator("Gelu", CONTRIB),
    "Gelu by tanh": _operator("FastGelu", CONTRIB),
    "QuickGelu": _operator("QuickGelu", CONTRIB),
    "SiLU": _gated("Sigmoid"),
    "HardSwish": _gated("HardSigmoid", alpha=1 / 6, beta=0.5),
    "Mish": _mish,
    "Softplus": _operator("Softplus"),
}


def restore_activation(model: ir.Model, standard: ir.Model) -> int:
    """Put the standard's function in the place of each activation of float32 values that is another one."""
    replacements, _ours, _theirs = differing_units(facts_of(model), facts_of(standard))
    values = {str(v.name): v for v in (*model.graph.inputs, *(o for node in model.graph for o in node.outputs))}
    types = element_types(model)
    restored = 0
    for unit, function in replacements:
        source, output = values[unit.source], values[unit.result]
        last, build = output.producer(), _BUILDERS.get(function)
        if last is None or build is None or last.op_type == "BiasGelu":
            continue
        if types.get(source, ir.DataType.FLOAT) != ir.DataType.FLOAT:
            continue
        result = build(last, source, f"{last.name or output.name}.restored")
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), output.shape or source.shape
        replace_output(output, result)
        restored += 1
    if restored:
        model.opset_imports.setdefault(CONTRIB, 1)
        sweep(model)
    return restored
