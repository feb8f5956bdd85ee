"""If nodes whose condition is the same in every run, replaced by the branch that is taken."""

from __future__ import annotations

import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, replace_output, sweep
from unlag.rewrites.known_values import known_values


def inline_branches(model: ir.Model) -> int:
    """An If of the main graph with a constant condition becomes the nodes of its branch.

    Constant is what follows from constants and from sizes that the file fixes. Branches inside of branches come
    up and are looked at in turn.
    """
    inlined = 0
    while step := _one_round(model):
        inlined += step
    if inlined:
        sweep(model)
    return inlined


def _one_round(model: ir.Model) -> int:
    branching = [node for node in model.graph if node.op_type == "If" and not node.domain]
    if not branching:
        return 0
    known = known_values(model)
    taken = []
    for node in branching:
        condition = node.inputs[0]
        array = None if condition is None else known.value(str(condition.name))
        if array is not None and array.size == 1:
            taken.append((node, "then_branch" if bool(array.reshape(-1)[0]) else "else_branch"))
    for node, branch in taken:
        _inline(model.graph, node, node.attributes[branch].as_graph())
    return len(taken)


def _inline(graph: ir.Graph, node: ir.Node, body: ir.Graph) -> None:
    """Move the branch's nodes in front of the If, under names that are its own."""
    prefix = node.name or str(node.outputs[0].name)
    results = list(body.outputs)
    body.outputs.clear()
    constants = lift_constants(graph, body, prefix)
    moved = list(body)
    for inner in moved:
        body.remove(inner)
        inner.name = f"{prefix}.{inner.name}" if inner.name else None
        for value in inner.outputs:
            value.name = f"{prefix}.{value.name}" if value.name else value.name
        graph.insert_before(node, inner)
    used: set[ir.Value] = set()
    for old, result in zip(node.outputs, results, strict=True):
        new = constants.get(result, result)
        # an input, a constant or a value that two outputs share can't take the output's name
        if new.producer() not in moved or new in used:
            new = _renamed(graph, node, new, f"{old.name}.same")
        used.add(new)
        replace_output(old, new)
    graph.remove(node, safe=True)


def lift_constants(graph: ir.Graph, body: ir.Graph, prefix: str) -> dict[ir.Value, ir.Value]:
    """Make a body's initializers the outer graph's; hands out the new value of each."""
    lifted = {}
    for name, value in list(body.initializers.items()):
        array = constant_array(value)
        if array is None:
            raise ValueError(f"initializer {name} has no value")
        lifted[value] = add_constant(graph, array, f"{prefix}.{name}")
        value.replace_all_uses_with(lifted[value])
    return lifted


def _renamed(graph: ir.Graph, before: ir.Node, value: ir.Value, name: str) -> ir.Value:
    node = ir.node("Identity", [value], name=name)
    node.outputs[0].name = f"{name}.out"
    graph.insert_before(before, node)
    return node.outputs[0]
