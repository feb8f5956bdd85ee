import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.rewrites.element_types import element_types


def plant() -> Pair:
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """The standard has the same outputs."""
    return Pair(plant().variant, {}, plant().variant, {})


EXPOSED = frozenset({"Add", "Mul", "Div", "Erf", "MatMul", "Softmax", "Conv", "Sigmoid", "Relu", "BatchNormalization"})


def infect(model: ir.Model) -> int:
    """Every intermediate activation an output."""
    types, exposed = element_types(model), 0
    for node in model.graph:
        value = node.outputs[0]
        if node.op_type in EXPOSED and not value.is_graph_output() and types.get(value) == ir.DataType.FLOAT:
            value.type = ir.TensorType(ir.DataType.FLOAT)
            model.graph.outputs.append(value)
            exposed += 1
    return exposed
