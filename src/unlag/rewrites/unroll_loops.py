"""Loops that run a known number of times, written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, insert_node, replace_output, sweep
from unlag.rewrites.evaluate import Evaluator
from unlag.rewrites.inferred_shapes import inferred_shapes
from unlag.rewrites.inline_branches import inline_branches, lift_constants
from unlag.rewrites.known_values import known_values

MOST_ITERATIONS = 64
MOST_NODES = 4096
"""Nodes that one loop may become."""

_AXES_AS_INPUT = 13
"""The opset from which on Unsqueeze takes its axes as an input."""


class _Loop(NamedTuple):
    """A Loop or Scan: its parts in one form."""

    node: ir.Node
    body: ir.Graph
    trips: int
    control: int
    """Body inputs in front of the carried values: counter and condition of a Loop."""
    carried: tuple[ir.Value | None, ...]
    scanned: tuple[ir.Value, ...]
    """Inputs of which each iteration reads one slice along axis 0."""


def unroll_loops(model: ir.Model) -> int:
    """A Loop with a constant trip count and no early end, or a Scan over an axis of known size, written out.

    Only in the main graph, up to ``MOST_ITERATIONS``, and not where the body holds control flow of its own.
    """
    nodes = [node for node in model.graph if node.op_type in {"Loop", "Scan"} and not node.domain]
    if not nodes:
        return 0
    known, shapes = known_values(model), inferred_shapes(model)
    loops = [loop for node in nodes if (loop := _read(node, known, shapes)) is not None]
    for loop in loops:
        _unroll(model, loop)
    if loops:
        sweep(model)
    return len(loops)


def resolve_control_flow(model: ir.Model) -> int:
    """Unroll loops and inline branches, until nothing of either is left to do."""
    changed = 0
    while step := unroll_loops(model) + inline_branches(model):
        changed += step
    return changed


def _read(node: ir.Node, known: Evaluator, shapes: Mapping[str, tuple[int | None, ...]]) -> _Loop | None:
    body = node.attributes["body"].as_graph()
    loop = _read_loop(node, body, known) if node.op_type == "Loop" else _read_scan(node, body, shapes)
    if loop is None or not 1 <= loop.trips <= MOST_ITERATIONS or loop.trips * len(body) > MOST_NODES:
        return None
    nested = any(
        a.type in {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS} for n in body for a in n.attributes.values()
    )
    return None if nested else loop


def _read_loop(node: ir.Node, body: ir.Graph, known: Evaluator) -> _Loop | None:
    limit, condition = node.inputs[0], node.inputs[1]
    count = None if limit is None else known.scalar(str(limit.name))
    if count is None or not _is_true(condition, known) or not _goes_on(body, known):
        return None
    return _Loop(node, body, int(count), 2, tuple(node.inputs[2:]), ())


def _is_true(condition: ir.Value | None, known: Evaluator) -> bool:
    array = None if condition is None else known.value(str(condition.name))
    return condition is None or (array is not None and bool(array.all()))


def _goes_on(body: ir.Graph, known: Evaluator) -> bool:
    """Whether the body gives back the condition that it gets, or always true."""
    value: ir.Value | None = body.outputs[0]
    while value is not None and (maker := value.producer()) is not None and maker.op_type == "Identity":
        value = maker.inputs[0]
    if value is None:
        return False
    return value is body.inputs[1] or _is_true(value, known)


def _read_scan(node: ir.Node, body: ir.Graph, shapes: Mapping[str, tuple[int | None, ...]]) -> _Loop | None:
    scanning = node.attributes.get_int("num_scan_inputs", 0) or 0
    names = ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
    if not scanning or any(any(node.attributes.get_ints(name, ()) or ()) for name in names):
        return None
    inputs = list(node.inputs)
    scanned = [value for value in inputs[-scanning:] if value is not None]
    counts = {shape[0] if (shape := shapes.get(str(value.name))) else None for value in scanned}
    count = counts.pop() if len(counts) == 1 else None
    if count is None or len(scanned) != scanning or len(body.inputs) != len(inputs):
        return None
    return _Loop(node, body, count, 0, tuple(inputs[:-scanning]), tuple(scanned))


def _unroll(model: ir.Model, loop: _Loop) -> None:
    graph, node = model.graph, loop.node
    prefix = node.name or str(next(out.name for out in node.outputs if out.name))
    lift_constants(graph, loop.body, prefix)
    carried: list[ir.Value | None] = list(loop.carried)
    stacks: list[list[ir.Value]] = [[] for _ in node.outputs[len(carried) :]]
    true = add_constant(graph, np.array(True), f"{prefix}.true")  # noqa: FBT003 - a constant of the graph
    for step in range(loop.trips):
        name = f"{prefix}.{step}"
        counter = add_constant(graph, np.array(step, np.int64), f"{name}.counter")
        slices = [
            insert_node(node, "Gather", [value, counter], name=f"{name}.slice{place}", attributes={"axis": 0})
            for place, value in enumerate(loop.scanned)
        ]
        given = [*(counter, true)[: loop.control], *carried, *slices]
        results = _write_out(graph, node, loop.body, given, name)[1 if loop.control else 0 :]
        carried = list(results[: len(carried)])
        for stack, value in zip(stacks, results[len(carried) :], strict=True):
            stack.append(value)
    made = [*carried, *(_stacked(model, node, stack, f"{prefix}.stack{i}") for i, stack in enumerate(stacks))]
    for old, new in zip(node.outputs, made, strict=True):
        if new is not None:
            replace_output(old, insert_node(node, "Identity", [new], name=f"{old.name}.same"))
    graph.remove(node, safe=True)


def _write_out(
    graph: ir.Graph, before: ir.Node, body: ir.Graph, given: Sequence[ir.Value | None], name: str
) -> list[ir.Value]:
    """Copy the body's nodes in front of ``before``, reading the given values; hands out its results."""
    copies: dict[ir.Value, ir.Value | None] = dict(zip(body.inputs, given, strict=True))
    for inner in body:
        inputs = [value if value is None else copies.get(value, value) for value in inner.inputs]
        copy = ir.Node(
            inner.domain,
            inner.op_type,
            inputs,
            list(inner.attributes.values()),
            num_outputs=len(inner.outputs),
            name=f"{name}.{inner.name}" if inner.name else None,
        )
        for old, new in zip(inner.outputs, copy.outputs, strict=True):
            new.name = f"{name}.{old.name}" if old.name else ""
            new.type, new.shape = old.type, old.shape
            copies[old] = new
        graph.insert_before(before, copy)
    results = [copies.get(value, value) for value in body.outputs]
    if any(value is None for value in results):
        raise ValueError(f"{name}: the body gives back an input that is absent")
    return [value for value in results if value is not None]


def _stacked(model: ir.Model, node: ir.Node, parts: list[ir.Value], name: str) -> ir.Value:
    """The parts along a new first axis."""
    graph, lifted = model.graph, []
    if (model.opset_imports.get("") or 0) >= _AXES_AS_INPUT:
        axes = add_constant(graph, np.array([0], np.int64), f"{name}.axes")
    for number, part in enumerate(parts):
        if (model.opset_imports.get("") or 0) >= _AXES_AS_INPUT:
            lifted.append(insert_node(node, "Unsqueeze", [part, axes], name=f"{name}.{number}"))
        else:
            lifted.append(insert_node(node, "Unsqueeze", [part], name=f"{name}.{number}", attributes={"axes": [0]}))
    return insert_node(node, "Concat", list(lifted), name=name, attributes={"axis": 0})
