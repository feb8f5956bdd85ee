import numpy as np
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import add_constant, constant_array, replace_output, sweep

PARTS = 4
LEAST_ELEMENTS = 1024
"""Smaller weights are left alone."""
CONVOLUTIONS = 4
"""Of so many convolutions one becomes a loop: it takes several times as long."""


def plant() -> Pair:
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """Branches on a constant, which the runtime resolves itself."""
    model = editable(tiny_bert())
    true = add_constant(model.graph, np.array(True), "always")  # noqa: FBT003 - a constant of the graph
    for node in [n for n in model.graph if n.op_type == "Erf"]:
        x = node.inputs[0]
        branches = [_graph(name, [], [ir.node(op, [x], name=f"{node.name}.{op}")]) for name, op in _BRANCHES]
        attributes = [
            ir.AttrGraph(f"{name}_branch", graph) for (name, _op), graph in zip(_BRANCHES, branches, strict=True)
        ]
        new = ir.Node("", "If", [true], attributes, name=f"{node.name}.if")
        new.outputs[0].name = f"{node.name}.if.out"
        model.graph.insert_before(node, new)
        replace_output(node.outputs[0], new.outputs[0])
    sweep(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


_BRANCHES = (("then", "Erf"), ("else", "Tanh"))


def infect(model: ir.Model) -> int:
    """Products with large weights, and convolutions, as loops over parts of their outputs."""
    changed = convolutions = 0
    for node in list(model.graph):
        weight = constant_array(node.inputs[1]) if node.op_type in {"MatMul", "Conv"} and not node.domain else None
        if weight is None or weight.dtype != np.float32 or weight.size < LEAST_ELEMENTS:
            continue
        if node.attributes.get_int("group", 1) != 1 or (node.op_type == "MatMul" and weight.ndim != 2):
            continue
        axis = 1 if node.op_type == "MatMul" else 0
        if weight.shape[axis] % PARTS:
            continue
        convolutions += node.op_type == "Conv"
        if node.op_type == "MatMul" or convolutions % CONVOLUTIONS == 1:
            _loop_over_parts(model.graph, node, weight, axis)
            changed += 1
    sweep(model)
    return changed


def _loop_over_parts(graph: ir.Graph, node: ir.Node, weight: np.ndarray, axis: int) -> None:
    """Loop: result = Concat(result, x · part[i]), carried from the first part on; a bias is added last."""
    name = node.name or node.outputs[0].name
    parts = np.stack(np.split(weight, PARTS, axis))
    stacked = add_constant(graph, np.ascontiguousarray(parts[1:]), f"{name}.parts")
    first = add_constant(graph, np.ascontiguousarray(parts[0]), f"{name}.first")
    kept = list(node.attributes.values())
    start = _new(node.op_type, [node.inputs[0], first], kept, f"{name}.start")
    counter, going, before = (ir.Value(name=f"{name}.{part}") for part in ("counter", "going", "before"))
    counter.type, counter.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    going.type, going.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    before.type = ir.TensorType(ir.DataType.FLOAT)
    still = _new("Identity", [going], [], f"{name}.still")
    part = _new("Gather", [stacked, counter], [], f"{name}.part")
    product = _new(node.op_type, [node.inputs[0], part.outputs[0]], kept, f"{name}.product")
    along = ir.AttrInt64("axis", -1 if node.op_type == "MatMul" else 1)
    joined = _new("Concat", [before, product.outputs[0]], [along], f"{name}.joined")
    still.outputs[0].type = ir.TensorType(ir.DataType.BOOL)
    joined.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    body = ir.Graph(
        [counter, going, before],
        [still.outputs[0], joined.outputs[0]],
        nodes=[still, part, product, joined],
        name=f"{name}.body",
    )
    count = add_constant(graph, np.array(PARTS - 1, np.int64), f"{name}.count")
    true = add_constant(graph, np.array(True), f"{name}.true")  # noqa: FBT003 - a constant of the graph
    loop = _new("Loop", [count, true, start.outputs[0]], [ir.AttrGraph("body", body)], f"{name}.loop")
    loop.outputs[0].type, loop.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    new = [start, loop]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = constant_array(node.inputs[2])
        row = add_constant(graph, bias.reshape((-1,) + (1,) * (weight.ndim - 2)), f"{name}.row")
        new.append(_new("Add", [loop.outputs[0], row], [], f"{name}.biased"))
    graph.insert_before(node, new)
    replace_output(node.outputs[0], new[-1].outputs[0])


def _new(op_type: str, inputs: list[ir.Value], attributes: list[ir.Attr], name: str) -> ir.Node:
    node = ir.Node("", op_type, inputs, attributes, name=name)
    node.outputs[0].name = f"{name}.out"
    return node


def _graph(name: str, inputs: list[ir.Value], nodes: list[ir.Node]) -> ir.Graph:
    for node in nodes:
        node.outputs[0].name = f"{node.name}.out"
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return ir.Graph(inputs, [nodes[-1].outputs[0]], nodes=nodes, name=name)
