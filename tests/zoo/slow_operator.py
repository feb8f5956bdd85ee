import string

import numpy as np
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import add_constant, insert_node, replace_output, sweep
from unlag.rewrites.inferred_shapes import inferred_shapes

EINSUM_SINCE = 12


def plant() -> Pair:
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """An Einsum that is no matrix product, and the power that runtimes have a kernel for."""
    model = editable(tiny_bert())
    two = add_constant(model.graph, np.array(2, np.float32), "two")
    for node in [n for n in model.graph if str(n.name).endswith("gelu.half")]:
        same = insert_node(
            node, "Einsum", [node.inputs[0]], name=f"{node.name}.same", attributes={"equation": "abc->abc"}
        )
        squared = insert_node(node, "Pow", [same], name=f"{node.name}.squared")
        squared.producer().resize_inputs(2)
        squared.producer().replace_input_with(1, two)
        node.replace_input_with(0, insert_node(node, "Sqrt", [squared], name=f"{node.name}.root"))
    return Pair(ir.to_proto(model), {}, ir.to_proto(model), {})


def infect(model: ir.Model) -> int:
    """Products of activations, and every third one with a weight, as Einsum; sigmoids written out."""
    shapes, changed, weighted = inferred_shapes(model), 0, 0
    graph = model.graph
    one = add_constant(graph, np.array(1, np.float32), "sigmoid.one")
    for node in list(graph):
        name = node.name or node.outputs[0].name
        if node.op_type == "MatMul" and not node.domain and (model.opset_imports.get("") or 0) >= EINSUM_SINCE:
            ranks = [len(shapes.get(str(value.name), ())) for value in node.inputs]
            is_weighted = node.inputs[1].name in graph.initializers
            weighted += is_weighted
            equation = None if is_weighted and weighted % 3 else _equation(*ranks)
            if equation is None:
                continue
            result = insert_node(
                node, "Einsum", list(node.inputs), name=f"{name}.sum", attributes={"equation": equation}
            )
        elif node.op_type == "Sigmoid":
            negated = insert_node(node, "Neg", [node.inputs[0]], name=f"{name}.negated")
            power = insert_node(node, "Exp", [negated], name=f"{name}.power")
            below = insert_node(node, "Add", [power, one], name=f"{name}.below")
            result = insert_node(node, "Div", [one, below], name=f"{name}.quotient")
        else:
            continue
        result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
        replace_output(node.outputs[0], result)
        changed += 1
    sweep(model)
    return changed


def _equation(left: int, right: int) -> str | None:
    """MatMul of these ranks as an equation."""
    letters = string.ascii_lowercase
    if left == right > 2:
        batch = letters[: left - 2]
        return f"{batch}xy,{batch}yz->{batch}xz"
    return f"{letters[: left - 1]}y,yz->{letters[: left - 1]}z" if right == 2 <= left else None
