import numpy as np
import onnx_ir as ir

from planting import OFF, Pair, flash, tiny_bert
from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep

VARIANT_OPTIONS = STANDARD_OPTIONS = OFF
"""With its passes on, the runtime takes the casts out."""
EVERY = 3
"""All products would take twice the time of the whole model."""
FLOAT16_MAX = float(np.finfo(np.float16).max)


def plant() -> Pair:
    return Pair(tiny_bert(), OFF, flash(fp16_activations=True), OFF)


def twin() -> Pair:
    """The same file with passes on: the runtime takes the casts out."""
    return Pair(tiny_bert(), {}, flash(fp16_activations=True), {})


def infect(model: ir.Model) -> int:
    """Every third product or convolution in float16 between casts."""
    chosen = _products(model)[::EVERY]
    for node in chosen:
        _halve(model.graph, node)
    sweep(model)
    return len(chosen)


def _products(model: ir.Model) -> list[ir.Node]:
    """Of an activation with constants that float16 holds."""
    found = []
    for node in model.graph:
        arrays = [constant_array(value) for value in node.inputs[1:]]
        known = (
            node.op_type in {"MatMul", "Conv", "Gemm"} and not node.domain and constant_array(node.inputs[0]) is None
        )
        if known and all(a is not None and a.dtype == np.float32 and np.abs(a).max() < FLOAT16_MAX for a in arrays):
            found.append(node)
    return found


def _halve(graph: ir.Graph, node: ir.Node) -> None:
    name, result = node.name or node.outputs[0].name, node.outputs[0]
    half = insert_node(node, "Cast", [node.inputs[0]], name=f"{name}.half", attributes={"to": int(ir.DataType.FLOAT16)})
    constants = [add_constant(graph, constant_array(v).astype(np.float16), f"{v.name}.half") for v in node.inputs[1:]]
    made = insert_node(node, node.op_type, [half, *constants], name=f"{name}.in_half")
    made.producer().attributes.update(node.attributes)
    replace_output(
        result, insert_node(node, "Cast", [made], name=f"{name}.whole", attributes={"to": int(ir.DataType.FLOAT)})
    )
