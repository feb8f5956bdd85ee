import numpy as np
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.facts import GraphIndex, facts_of
from unlag.model.graph import add_constant, insert_node, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.fuse_gelu import Gelu, find_gelu

VARIANT_OPTIONS = STANDARD_OPTIONS = {"optimization": "all"}
"""Without its passes the runtime fuses no GELU, however it is written."""


def plant() -> Pair:
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """The factors of each product swapped: an order that the runtime does match."""
    model = editable(tiny_bert())
    for node in [n for n in model.graph if str(n.name).endswith(("gelu.half", "gelu.add"))]:
        first, second = node.inputs
        node.replace_input_with(0, second)
        node.replace_input_with(1, first)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def infect(model: ir.Model) -> int:
    """x · (0.5 · (1 + erf)): an order that the runtime does not match."""
    facts, types = facts_of(model), element_types(model)
    index = GraphIndex(facts)
    gelus = [gelu for node in facts.nodes if node.depth == 0 and (gelu := find_gelu(index, node)) is not None]
    outputs = {str(out.name): out for node in model.graph for out in node.outputs}
    values = outputs | {str(value.name): value for value in model.graph.inputs}
    found = [g for g in gelus if g.op_type == "Gelu" and types.get(values[g.source]) == ir.DataType.FLOAT]
    for gelu in found:
        _spell(model.graph, gelu, values)
    sweep(model)
    return len(found)


def _spell(graph: ir.Graph, gelu: Gelu, values: dict[str, ir.Value]) -> None:
    x, result = values[gelu.source], values[gelu.result]
    last = result.producer()
    numbers = {"root": np.sqrt(2), "one": 1, "half": 0.5}
    constants = {
        name: add_constant(graph, np.array(number, np.float32), f"{gelu.result}.{name}")
        for name, number in numbers.items()
    }

    def put(op_type: str, *inputs: ir.Value) -> ir.Value:
        return insert_node(last, op_type, list(inputs), name=f"{gelu.result}.{op_type.lower()}.{inputs[-1].name}")

    erf = put("Erf", put("Div", x, constants["root"]))
    gate = put("Mul", put("Add", erf, constants["one"]), constants["half"])
    replace_output(result, put("Mul", x, gate))
