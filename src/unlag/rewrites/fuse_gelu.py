"""GELU and its relatives, spelled out in elementwise nodes, replaced by one operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import GraphFacts, GraphIndex, Node, facts_of
from unlag.model.graph import insert_node, opset_of, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.evaluate import Evaluator
from unlag.rewrites.plain_view import code_values, plain_view

DOMAIN = "com.microsoft"
STANDARD_SINCE = 20
"""The opset from which on Gelu is a standard operator."""

_SAMPLES = np.linspace(-4.0, 4.0, 33)
_EXACT = np.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in _SAMPLES])
_BY_TANH = 0.5 * _SAMPLES * (1 + np.tanh(math.sqrt(2 / math.pi) * (_SAMPLES + 0.044715 * _SAMPLES**3)))
_ROUNDING = 1e-6
"""Constants such as √2 are float32; the two kinds of GELU differ by 5e-4."""
_LONGEST_PATH = 12

Attributes = dict[str, int | float | str | list[int] | list[float]]


class Gelu(NamedTuple):
    """A GELU: names of its input and of its result, the operator that computes it, and that one's factor."""

    source: str
    result: str
    op_type: str
    alpha: float = 0.0


class Form(NamedTuple):
    """An operator to compute a GELU by."""

    op_type: str
    domain: str
    attributes: Attributes


def fuse_gelu(model: ir.Model) -> int:
    """x/2 · (1 + erf(x/√2)) becomes Gelu(x), its approximation by tanh FastGelu(x), x · sigmoid(αx) QuickGelu(x).

    How the factors are ordered, and whether √2 divides or its inverse multiplies, does not matter: the piece of
    graph around the Erf, Tanh or Sigmoid is run on sample values and compared with the function.
    """
    return replace_gelus(model, _contributed)


def replace_gelus(model: ir.Model, form_of: Callable[[Gelu], Form | None]) -> int:
    """Give every spelled-out GELU of the main graph the form that ``form_of`` wants; counts them."""
    facts = facts_of(model)
    outputs = (out for node in model.graph for out in node.outputs)
    values = {str(v.name): v for v in (*model.graph.inputs, *outputs) if v.name}
    types = element_types(model)
    floats = {name for name, v in values.items() if types.get(v, ir.DataType.FLOAT) == ir.DataType.FLOAT}
    floats -= code_values(facts)
    fused = sum(_replace(gelu, values, form_of) for gelu in gelus(facts, frozenset(floats)))
    if fused:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return fused


def gelus(facts: GraphFacts, floats: frozenset[str]) -> Iterator[Gelu]:
    """All of the main graph that are spelled out, also around codes; ``floats`` are the values that hold floats."""
    index = GraphIndex(plain_view(facts))
    for node in index.facts.nodes:
        gelu = find_gelu(index, node, floats) if node.depth == 0 else None
        if gelu is not None:
            yield gelu


def supports_standard(model: ir.Model) -> bool:
    """Whether the model's opset has Gelu."""
    return opset_of(model) >= STANDARD_SINCE


def find_gelu(index: GraphIndex, node: Node, floats: frozenset[str] | None = None) -> Gelu | None:
    """The GELU around an Erf, Tanh or Sigmoid node; nothing if it is no part of one."""
    if node.op_type not in {"Erf", "Tanh", "Sigmoid"} or node.domain:
        return None
    for source in _sources(index, node.inputs[0]):
        if floats is not None and source not in floats:
            continue
        evaluator = Evaluator(index, {source: _SAMPLES})
        function = _function(evaluator, node)
        if function is None:
            continue
        op_type, alpha, reference = function
        for name in _results(index, node.outputs[0]):
            value = evaluator.value(name)
            if value is None:
                break
            usable = (floats is None or name in floats) and value.shape == reference.shape
            if usable and float(np.abs(value.astype(np.float64) - reference).max()) < _ROUNDING:
                return Gelu(source, name, op_type, alpha)
    return None


def _function(evaluator: Evaluator, node: Node) -> tuple[str, float, npt.NDArray[np.float64]] | None:
    """The operator that the node can only be a part of, and its values."""
    if node.op_type == "Erf":
        return "Gelu", 0.0, _EXACT
    if node.op_type == "Tanh":
        return "FastGelu", 0.0, _BY_TANH
    inner = evaluator.value(node.inputs[0])
    if inner is None or inner.shape != _SAMPLES.shape:
        return None
    alpha = float(inner[-1] / _SAMPLES[-1])
    return "QuickGelu", alpha, _SAMPLES / (1 + np.exp(-alpha * _SAMPLES))


def _results(index: GraphIndex, name: str) -> Iterator[str]:
    """Values behind a node, as long as there is one reader."""
    for _step in range(_LONGEST_PATH):
        readers = index.consumers.get(name, [])
        if len(readers) != 1 or len(readers[0].outputs) != 1:
            return
        name = readers[0].outputs[0]
        yield name


def _sources(index: GraphIndex, name: str) -> list[str]:
    """Values in front of the Erf or Tanh that may be the GELU's input, the nearest first."""
    found, waiting = [name], [name]
    for _step in range(2 * _LONGEST_PATH):
        if not waiting:
            break
        node = index.producer(waiting.pop(0))
        if node is None or node.op_type not in {"Mul", "Div", "Add", "Pow", "Cast", "Identity"} or node.domain:
            continue
        data = [i for i in node.inputs if index.constant(i) is None and i not in found]
        found += data
        waiting += data
    return found


def spelling_of(index: GraphIndex, gelu: Gelu) -> tuple[str, ...]:
    """How a GELU is written: its operators and the order of their operands, from the result back."""
    words: list[str] = []
    waiting = [gelu.result]
    while waiting and len(words) < 4 * _LONGEST_PATH:
        name = waiting.pop(0)
        node = index.producer(name)
        if name == gelu.source or node is None:
            words.append("x" if name == gelu.source else f"{index.scalar(name):.3g}" if index.constant(name) else "?")
            continue
        words.append(node.op_type)
        waiting += node.inputs
    return tuple(words)


def _contributed(gelu: Gelu) -> Form:
    return Form(gelu.op_type, DOMAIN, {"alpha": gelu.alpha} if gelu.op_type == "QuickGelu" else {})


def _replace(gelu: Gelu, values: dict[str, ir.Value], form_of: Callable[[Gelu], Form | None]) -> bool:
    source, output = values[gelu.source], values[gelu.result]
    last, form = output.producer(), form_of(gelu)
    if last is None or form is None:
        return False
    name = f"{last.name or output.name}.fused"
    fused = insert_node(last, form.op_type, [source], name=name, domain=form.domain, attributes=form.attributes)
    fused.type, fused.shape = ir.TensorType(ir.DataType.FLOAT), output.shape or source.shape
    replace_output(output, fused)
    return True
