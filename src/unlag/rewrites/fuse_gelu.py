"""GELU spelled out in elementwise nodes replaced by one operator."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from unlag.model.facts import GraphIndex, Node, facts_of
from unlag.model.graph import insert_node, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.evaluate import Evaluator

DOMAIN = "com.microsoft"

_SAMPLES = np.linspace(-4.0, 4.0, 33)
_EXACT = np.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in _SAMPLES])
_BY_TANH = 0.5 * _SAMPLES * (1 + np.tanh(math.sqrt(2 / math.pi) * (_SAMPLES + 0.044715 * _SAMPLES**3)))
_ROUNDING = 1e-6
"""Constants such as √2 are float32; the two kinds of GELU differ by 5e-4."""
_LONGEST_PATH = 6


class Gelu(NamedTuple):
    """A GELU: names of its input and of its result, and the operator that computes it."""

    source: str
    result: str
    op_type: str


def fuse_gelu(model: ir.Model) -> int:
    """x/2 · (1 + erf(x/√2)) becomes Gelu(x), and its approximation by tanh becomes FastGelu(x).

    How the factors are ordered, and whether √2 divides or its inverse multiplies, does not matter: the piece of
    graph around the Erf or Tanh is run on sample values and compared with the function.
    """
    facts = facts_of(model)
    index = GraphIndex(facts)
    found = [gelu for node in facts.nodes if node.depth == 0 and (gelu := find_gelu(index, node)) is not None]
    outputs = (out for node in model.graph for out in node.outputs)
    values = {str(v.name): v for v in (*model.graph.inputs, *outputs) if v.name}
    types = element_types(model)
    fused = sum(_fuse(gelu, values, types) for gelu in found)
    if fused:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return fused


def find_gelu(index: GraphIndex, node: Node) -> Gelu | None:
    """The GELU around an Erf or Tanh node; nothing if it is no part of one."""
    if node.op_type not in {"Erf", "Tanh"} or node.domain:
        return None
    reference, op_type = (_EXACT, "Gelu") if node.op_type == "Erf" else (_BY_TANH, "FastGelu")
    for source in _sources(index, node.inputs[0]):
        evaluator = Evaluator(index, {source: _SAMPLES})
        name = node.outputs[0]
        for _step in range(_LONGEST_PATH):
            readers = index.consumers.get(name, [])
            if len(readers) != 1 or len(readers[0].outputs) != 1:
                break
            name = readers[0].outputs[0]
            value = evaluator.value(name)
            if value is None:
                break
            if value.shape == reference.shape and float(np.abs(value - reference).max()) < _ROUNDING:
                return Gelu(source, name, op_type)
    return None


def _sources(index: GraphIndex, name: str) -> list[str]:
    """Values in front of the Erf or Tanh that may be the GELU's input, the nearest first."""
    found, waiting = [name], [name]
    for _step in range(2 * _LONGEST_PATH):
        if not waiting:
            break
        node = index.producer(waiting.pop(0))
        if node is None or node.op_type not in {"Mul", "Div", "Add", "Pow", "Cast"} or node.domain:
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


def _fuse(gelu: Gelu, values: dict[str, ir.Value], types: dict[ir.Value, ir.DataType]) -> bool:
    source, output = values[gelu.source], values[gelu.result]
    last = output.producer()
    if last is None or types.get(source, ir.DataType.FLOAT) != ir.DataType.FLOAT:
        return False
    fused = insert_node(last, gelu.op_type, [source], name=f"{last.name or output.name}.fused", domain=DOMAIN)
    fused.type, fused.shape = ir.TensorType(ir.DataType.FLOAT), output.shape or source.shape
    replace_output(output, fused)
    return True
