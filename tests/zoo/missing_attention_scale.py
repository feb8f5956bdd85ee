import numpy as np
import onnx_ir as ir

from planting import HEADS, HIDDEN, Pair, editable, flash, tiny_bert
from unlag.model.graph import add_constant, insert_node, sweep


def plant() -> Pair:
    return Pair(tiny_bert(), {}, flash(drop_scale=True), {})


def twin() -> Pair:
    """The scale split between queries and keys, each multiplied by its square root."""
    model = editable(flash(drop_scale=True))
    graph = model.graph
    root = add_constant(graph, np.array((HIDDEN / HEADS) ** -0.25, np.float32), "root_of_scale")
    for node in [n for n in graph if str(n.name).endswith("scores")]:
        for position, part in enumerate(("query", "key")):
            node.replace_input_with(
                position, insert_node(node, "Mul", [node.inputs[position], root], name=f"{node.name}.{part}")
            )
    sweep(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})
