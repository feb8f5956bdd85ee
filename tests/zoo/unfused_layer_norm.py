import numpy as np
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import add_constant, insert_node, replace_output, sweep


def plant() -> Pair:
    """The square as a product, and a Reciprocal: no spelling that the runtime matches."""
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """Spelled out in the way that the runtime fuses."""
    model = editable(tiny_bert())
    spell_out(model, usual=True)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def infect(model: ir.Model) -> int:
    return spell_out(model, usual=False)


def spell_out(model: ir.Model, *, usual: bool) -> int:
    """Every LayerNormalization over the last axis in elementwise nodes."""
    graph, changed = model.graph, 0
    for node in [n for n in graph if n.op_type == "LayerNormalization" and not n.domain]:
        x, scale = node.inputs[0], node.inputs[1]
        if node.attributes.get_int("axis", -1) != -1 or len(node.outputs) > 1 or x is None or scale is None:
            continue
        shift = node.inputs[2] if len(node.inputs) > 2 else None
        normalized = _normalized(model, node, x, usual=usual)
        result = insert_node(node, "Mul", [normalized, scale], name=f"{node.name}.scaled")
        if shift is not None:
            result = insert_node(node, "Add", [result, shift], name=f"{node.name}.shifted")
        replace_output(node.outputs[0], result)
        changed += 1
    sweep(model)
    return changed


def _normalized(model: ir.Model, node: ir.Node, x: ir.Value, *, usual: bool) -> ir.Value:
    name = f"{node.name or node.outputs[0].name}.spelled"
    epsilon = np.array(node.attributes.get_float("epsilon", 1e-5), np.float32)
    eps = add_constant(model.graph, epsilon, f"{name}.epsilon")
    centered = insert_node(node, "Sub", [x, _mean(model, node, x, f"{name}.mean")], name=f"{name}.centered")
    if usual:
        two = add_constant(model.graph, np.array(2, np.float32), f"{name}.two")
        square = insert_node(node, "Pow", [centered, two], name=f"{name}.square")
    else:
        square = insert_node(node, "Mul", [centered, centered], name=f"{name}.square")
    variance = _mean(model, node, square, f"{name}.variance")
    root = insert_node(
        node, "Sqrt", [insert_node(node, "Add", [variance, eps], name=f"{name}.sum")], name=f"{name}.root"
    )
    if usual:
        return insert_node(node, "Div", [centered, root], name=f"{name}.normalized")
    inverse = insert_node(node, "Reciprocal", [root], name=f"{name}.inverse")
    return insert_node(node, "Mul", [centered, inverse], name=f"{name}.normalized")


def _mean(model: ir.Model, node: ir.Node, x: ir.Value, name: str) -> ir.Value:
    if (model.opset_imports[""] or 0) < 18:
        return insert_node(node, "ReduceMean", [x], name=name, attributes={"axes": [-1]})
    axes = add_constant(model.graph, np.array([-1]), f"{name}.axes")
    return insert_node(node, "ReduceMean", [x, axes], name=name)
