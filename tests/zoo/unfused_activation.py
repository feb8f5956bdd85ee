import onnx_ir as ir

from planting import Pair, editable, tiny_bert


def plant() -> Pair:
    """x · (0.5 · (1 + erf)): an order that the runtime does not match."""
    model = editable(tiny_bert())
    for last in [n for n in model.graph if str(n.name).endswith("gelu.half")]:
        product = last.inputs[0].producer()
        x, shifted, half = product.inputs[0], product.inputs[1], last.inputs[1]
        product.replace_input_with(0, half)
        product.replace_input_with(1, shifted)
        last.replace_input_with(1, x)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """The factors of each product swapped: an order that the runtime does match."""
    model = editable(tiny_bert())
    for node in [n for n in model.graph if str(n.name).endswith(("gelu.half", "gelu.add"))]:
        first, second = node.inputs
        node.replace_input_with(0, second)
        node.replace_input_with(1, first)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})
