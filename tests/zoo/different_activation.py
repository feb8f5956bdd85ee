import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.facts import facts_of
from unlag.model.graph import insert_node, replace_output, sweep
from unlag.rewrites.activation_units import CONTRIB, find_units
from unlag.rewrites.element_types import element_types
from zoo import unfused_activation

REPLACED_BY = {"Gelu": "Relu", "Gelu by tanh": "QuickGelu", "QuickGelu": "Relu", "SiLU": "Relu", "Relu": "SiLU"}


def plant() -> Pair:
    """Relu for GELU."""
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """The same function, spelled in another order."""
    model = editable(tiny_bert())
    for node in [n for n in model.graph if str(n.name).endswith(("gelu.half", "gelu.add"))]:
        first, second = node.inputs
        node.replace_input_with(0, second)
        node.replace_input_with(1, first)
    return Pair(unfused_activation.plant().standard, {}, ir.to_proto(model), {})


def infect(model: ir.Model) -> int:
    """Every activation by a cheaper one, or by one that is not trained for."""
    graph, changed = model.graph, 0
    values = {str(out.name): out for node in graph for out in node.outputs}
    values |= {str(value.name): value for value in graph.inputs}
    types = element_types(model)
    for unit in find_units(facts_of(model)):
        new = REPLACED_BY.get(unit.function)
        source, output = values[unit.source], values[unit.result]
        if new is None or types.get(source) != ir.DataType.FLOAT:
            continue
        last = output.producer()
        if new == "SiLU":
            gate = insert_node(last, "Sigmoid", [source], name=f"{unit.node}.gate")
            result = insert_node(last, "Mul", [source, gate], name=f"{unit.node}.other")
        else:
            domain = CONTRIB if new == "QuickGelu" else ""
            result = insert_node(last, new, [source], name=f"{unit.node}.other", domain=domain)
        result.type, result.shape = output.type or source.type, output.shape or source.shape
        replace_output(output, result)
        model.opset_imports.setdefault(CONTRIB, 1)
        changed += 1
    sweep(model)
    return changed
