import numpy as np
import onnx
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import add_constant, insert_node


def plant() -> Pair:
    return Pair(tiny_bert(), {}, guarded(), {})


def twin() -> Pair:
    """The standard has the guards too."""
    return Pair(guarded(), {}, guarded(), {})


def guarded() -> onnx.ModelProto:
    model = editable(tiny_bert())
    zero = add_constant(model.graph, np.array(0.0, np.float32), "guard.zero")
    for node in [n for n in model.graph if str(n.name).endswith("self.context")]:
        weights = node.inputs[0]
        broken = insert_node(node, "IsNaN", [weights], name=f"{node.name}.broken")
        node.replace_input_with(0, insert_node(node, "Where", [broken, zero, weights], name=f"{node.name}.guard"))
    return ir.to_proto(model)
