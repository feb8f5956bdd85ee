"""Operators with slow kernels, spelled with fast ones: Einsum, Pow by special exponents, the sigmoid written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from unlag.model.facts import GraphIndex, Node, facts_of
from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep
from unlag.rewrites.einsum_equation import ProductPlan, plan_product
from unlag.rewrites.element_types import element_types
from unlag.rewrites.known_values import fixed_facts

EXPONENTS = (-2.0, -1.0, -0.5, 0.5, 1.0, 1.5, 4.0)
"""Exponents that few products, roots and quotients give; runtimes have fast kernels for 2 and 3 themselves."""


def slow_operators(index: GraphIndex) -> list[Node]:
    """Nodes that have a faster spelling; of a sigmoid that is written out, its last one."""
    return [node for node in index.facts.nodes if _is_slow(index, node)]


def _is_slow(index: GraphIndex, node: Node) -> bool:
    if node.domain:
        return False
    if node.op_type == "Einsum":
        plan = plan_product(str(node.attributes.get("equation", ""))) if len(node.inputs) == 2 else None
        if plan is None:
            return False
        right = index.constant(node.inputs[0 if plan.swapped else 1])
        return _fits(plan, None if right is None else right.shape)
    if node.op_type == "Pow":
        constant = index.constant(node.inputs[1])
        return constant is not None and constant.dtype == "float32" and index.scalar(node.inputs[1]) in EXPONENTS
    return sigmoid_source(index, node) is not None


def _fits(plan: ProductPlan, constant_shape: tuple[int, ...] | None) -> bool:
    """Several axes of the right operand are merged beforehand, so it must be constant then."""
    return constant_shape is not None or plan.own_right == plan.summed == 1


def sigmoid_source(index: GraphIndex, node: Node) -> str | None:
    """x, where the node is the last one of 1 / (1 + exp(−x)) and nobody reads what is in between."""
    if node.domain or node.op_type not in {"Div", "Reciprocal"}:
        return None
    if node.op_type == "Div" and index.scalar(node.inputs[0]) != 1:
        return None
    below = _sole(index, node.inputs[-1], "Add")
    if below is None:
        return None
    powers = [name for name in below.inputs if index.scalar(name) is None]
    if len(powers) != 1 or all(index.scalar(name) != 1 for name in below.inputs):
        return None
    power = _sole(index, powers[0], "Exp")
    negated = None if power is None else _sole(index, power.inputs[0], "Neg")
    return None if negated is None else negated.inputs[0]


def _sole(index: GraphIndex, name: str, op_type: str) -> Node | None:
    """The operator that makes the value, if nobody else reads it."""
    node = index.producer(name)
    read_once = len(index.consumers.get(name, [])) == 1
    return node if node is not None and node.op_type == op_type and not node.domain and read_once else None


def respell_operators(model: ir.Model) -> int:
    """Respell what ``slow_operators`` names, in the main graph, for float32 values."""
    facts = fixed_facts(facts_of(model))
    index = GraphIndex(facts)
    slow = [node for node in slow_operators(index) if node.depth == 0]
    values = {str(v.name): v for v in (*model.graph.inputs, *(o for node in model.graph for o in node.outputs))}
    types = element_types(model)
    changed = 0
    for found in slow:
        node = values[found.outputs[0]].producer()
        if node is None or any(types.get(v, ir.DataType.FLOAT) != ir.DataType.FLOAT for v in node.inputs if v):
            continue
        source = sigmoid_source(index, found)
        if source is not None:
            new = insert_node(node, "Sigmoid", [values[source]], name=f"{_name(node)}.sigmoid")
        else:
            new = _product(model.graph, node) if found.op_type == "Einsum" else _power(model.graph, node)
        _put_in_place(node, new)
        changed += 1
    if changed:
        sweep(model)
    return changed


def _name(node: ir.Node) -> str:
    return node.name or str(node.outputs[0].name)


def _put_in_place(node: ir.Node, new: ir.Value) -> None:
    old = node.outputs[0]
    if new.producer() is None or new is node.inputs[0]:
        node_before = insert_node(node, "Identity", [new], name=f"{_name(node)}.same")
        new = node_before
    new.type, new.shape = old.type or new.type, old.shape or new.shape
    replace_output(old, new)


def _power(graph: ir.Graph, node: ir.Node) -> ir.Value:
    x, exponent = node.inputs[0], constant_array(node.inputs[1])
    if x is None or exponent is None:
        raise ValueError(f"{node.name} is no power by a constant")
    name = _name(node)

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        return insert_node(node, op_type, list(inputs), name=f"{name}.{op_type.lower()}")

    def squared(value: ir.Value) -> ir.Value:
        return op("Mul", value, value)

    builders: dict[float, Callable[[], ir.Value]] = {
        -2.0: lambda: op("Reciprocal", squared(x)),
        -1.0: lambda: op("Reciprocal", x),
        -0.5: lambda: op("Reciprocal", op("Sqrt", x)),
        0.5: lambda: op("Sqrt", x),
        1.0: lambda: x,
        1.5: lambda: op("Mul", x, op("Sqrt", x)),
        4.0: lambda: insert_node(node, "Mul", [square := squared(x), square], name=f"{name}.fourth"),
    }
    raised = builders[float(exponent.reshape(-1)[0])]()
    if exponent.ndim == 0:
        return raised
    # the exponent's axes belong to the result's
    return insert_node(
        node,
        "Mul",
        [raised, add_constant(graph, np.ones(exponent.shape, np.float32), f"{name}.one")],
        name=f"{name}.wide",
    )


def _product(graph: ir.Graph, node: ir.Node) -> ir.Value:
    plan = plan_product(node.attributes["equation"].as_string())
    if plan is None:
        raise ValueError(f"{node.name} is no matrix product")
    left, right = (node.inputs[1], node.inputs[0]) if plan.swapped else (node.inputs[0], node.inputs[1])
    if left is None or right is None:
        raise ValueError(f"{node.name} lacks an operand")
    name = _name(node)
    constant = constant_array(right)
    own_sizes: list[int] = []
    left = _turned(node, left, plan.left, f"{name}.left")
    if constant is None:
        right = _turned(node, right, plan.right, f"{name}.right")
    else:
        turned = np.ascontiguousarray(constant.transpose(plan.right))
        if not plan.batch:
            own_sizes = list(turned.shape[plan.summed :])
            turned = turned.reshape(math.prod(turned.shape[: plan.summed]), math.prod(own_sizes))
        right = add_constant(graph, turned, f"{name}.matrix")
    if plan.summed > 1:
        left = _reshaped(graph, node, left, [0] * plan.own_left + [-1], f"{name}.merged")
    product = insert_node(node, "MatMul", [left, right], name=f"{name}.matmul")
    if plan.own_right > 1:
        product = _reshaped(graph, node, product, [0] * plan.own_left + own_sizes, f"{name}.parted")
    return _turned(node, product, plan.result, f"{name}.turned")


def _reshaped(graph: ir.Graph, node: ir.Node, value: ir.Value, sizes: list[int], name: str) -> ir.Value:
    shape = add_constant(graph, np.array(sizes, np.int64), f"{name}.shape")
    return insert_node(node, "Reshape", [value, shape], name=name)


def _turned(node: ir.Node, value: ir.Value, perm: tuple[int, ...], name: str) -> ir.Value:
    if perm == tuple(range(len(perm))):
        return value
    return insert_node(node, "Transpose", [value], name=name, attributes={"perm": list(perm)})
