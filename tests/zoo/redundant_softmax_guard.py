import numpy as np
import onnx
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.facts import facts_of
from unlag.model.graph import add_constant, opset_of
from unlag.rewrites.attention_pattern import attention_blocks
from unlag.rewrites.element_types import element_types

OPSET_OF_WHERE = 9


def plant() -> Pair:
    return Pair(tiny_bert(), {}, guarded(), {})


def twin() -> Pair:
    """The standard has the guards too."""
    return Pair(guarded(), {}, guarded(), {})


def guarded() -> onnx.ModelProto:
    model = editable(tiny_bert())
    infect(model)
    return ir.to_proto(model)


def infect(model: ir.Model) -> int:
    """A check for NaN behind each attention Softmax."""
    if opset_of(model) < OPSET_OF_WHERE:
        return 0
    scores = {block.softmax for block in attention_blocks(facts_of(model)) if not block.fused}
    types = element_types(model)
    softmaxes = [n for n in model.graph if n.op_type == "Softmax" and n.inputs[0].name in scores]
    found = [n for n in softmaxes if types.get(n.outputs[0]) == ir.DataType.FLOAT]
    for node in found:
        _guard(model.graph, node)
    return len(found)


def _guard(graph: ir.Graph, softmax: ir.Node) -> None:
    weights, name = softmax.outputs[0], softmax.name or softmax.outputs[0].name
    readers = [(use.node, use.idx) for use in weights.uses()]
    zero = add_constant(graph, np.array(0.0, np.float32), f"{name}.zero")
    broken = ir.node("IsNaN", [weights], name=f"{name}.broken")
    guard = ir.node("Where", [broken.outputs[0], zero, weights], name=f"{name}.guard")
    for node in (broken, guard):
        node.outputs[0].name = f"{node.name}.out"
    graph.insert_after(softmax, [broken, guard])
    for reader, place in readers:
        reader.replace_input_with(place, guard.outputs[0])
