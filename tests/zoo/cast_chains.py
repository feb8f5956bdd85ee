import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import insert_node
from unlag.rewrites.element_types import element_types


def plant() -> Pair:
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """To float16 and back: what it rounds away is gone, so no cast is useless."""
    model = editable(tiny_bert())
    for node in [n for n in model.graph if n.op_type == "Erf"]:
        half = insert_node(node, "Cast", [node.inputs[0]], name=f"{node.name}.half", attributes={"to": 10})
        node.replace_input_with(0, insert_node(node, "Cast", [half], name=f"{node.name}.back", attributes={"to": 1}))
    return Pair(ir.to_proto(model), {}, ir.to_proto(model), {})


def infect(model: ir.Model) -> int:
    """float64 around every Reshape and Transpose of floats; around a pair of its own behind every convolution."""
    types, changed = element_types(model), 0
    for node in list(model.graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if types.get(result) != ir.DataType.FLOAT:
            continue
        if node.op_type in {"Reshape", "Transpose"} and source is not None and source.producer() is not None:
            wide = insert_node(node, "Cast", [source], name=f"{node.name or result.name}.wide", attributes={"to": 11})
            node.replace_input_with(0, wide)
            result.type = None
            _narrow(model.graph, node, result)
            changed += 1
        elif node.op_type == "Conv" and result.uses():
            _around_nothing(model.graph, node)
            changed += 1
    return changed


def _narrow(graph: ir.Graph, node: ir.Node, result: ir.Value) -> None:
    users = [(use.node, use.idx) for use in result.uses()]
    back = ir.node("Cast", [result], {"to": 1}, name=f"{node.name or result.name}.narrow")
    back.outputs[0].name = f"{result.name}.narrow"
    back.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    back.outputs[0].shape = result.shape
    graph.insert_after(node, back)
    if result.is_graph_output():
        name, result.name = result.name, f"{result.name}.wide"
        back.outputs[0].name = name
        graph.outputs[list(graph.outputs).index(result)] = back.outputs[0]
    for user, position in users:
        user.replace_input_with(position, back.outputs[0])


def _around_nothing(graph: ir.Graph, node: ir.Node) -> None:
    """Cast, Flatten away nothing, Cast: the runtime's passes look no further than neighbors."""
    result = node.outputs[0]
    users = [(use.node, use.idx) for use in result.uses()]
    name = node.name or result.name
    wide = ir.node("Cast", [result], {"to": 11}, name=f"{name}.wide")
    moved = ir.node("Transpose", [wide.outputs[0]], {"perm": [0, 1, 3, 2]}, name=f"{name}.moved")
    narrow = ir.node("Cast", [moved.outputs[0]], {"to": 1}, name=f"{name}.narrow")
    back = ir.node("Transpose", [narrow.outputs[0]], {"perm": [0, 1, 3, 2]}, name=f"{name}.moved_back")
    for new in (wide, moved, narrow, back):
        new.outputs[0].name = f"{new.name}.out"
    narrow.outputs[0].type = back.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph.insert_after(node, [wide, moved, narrow, back])
    for user, position in users:
        user.replace_input_with(position, back.outputs[0])
