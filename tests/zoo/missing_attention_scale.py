import numpy as np
import onnx_ir as ir

from planting import HEADS, HIDDEN, Pair, editable, flash, tiny_bert
from unlag.model.facts import facts_of
from unlag.model.graph import add_constant, constant_array, insert_node, sweep
from unlag.rewrites.attention_pattern import AttentionBlock, attention_blocks
from unlag.rewrites.neighbors import sole_reader


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


def infect(model: ir.Model) -> int:
    """The Div or Mul by the scale taken out from behind each product of queries and keys."""
    values = {out.name: out for node in model.graph for out in node.outputs}
    dropped = sum(_drop_scale(values[block.scores]) for block in _spelled_out(model) if block.scores in values)
    sweep(model)
    return dropped


def _spelled_out(model: ir.Model) -> list[AttentionBlock]:
    return [block for block in attention_blocks(facts_of(model)) if not block.fused]


def _drop_scale(scores: ir.Value) -> bool:
    reader = sole_reader(scores)
    if reader is None or reader.op_type not in {"Div", "Mul"} or reader.outputs[0].is_graph_output():
        return False
    others = [constant_array(value) for value in reader.inputs if value is not scores]
    if len(others) != 1 or others[0] is None or others[0].size != 1:
        return False
    reader.outputs[0].replace_all_uses_with(scores)
    return True
