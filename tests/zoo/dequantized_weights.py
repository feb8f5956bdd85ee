import onnx_ir as ir

from calibrating import products
from planting import OFF, Pair, flash, tiny_bert
from quantizing import dequantize_weight
from unlag.demo.flash import quantize_weight
from unlag.model.graph import constant_array, sweep

VARIANT_OPTIONS = STANDARD_OPTIONS = OFF
"""With its passes on, the runtime computes from the codes."""
EVERY = 4
"""All weights of a small BERT would take as long as the rest of it."""


def plant() -> Pair:
    return Pair(tiny_bert(), OFF, flash(int8_weights=True), OFF)


def twin() -> Pair:
    """The same file with passes on: the runtime computes from the codes."""
    return Pair(tiny_bert(), {}, flash(int8_weights=True), {})


def infect(model: ir.Model) -> int:
    """Every fourth weight of a product or convolution as int8, with a scale for each channel of its results."""
    found = products(model)[::EVERY]
    for node in found:
        weight = constant_array(node.inputs[1])
        axis = 0 if node.op_type == "Conv" else weight.ndim - 1
        dequantize_weight(node, *quantize_weight(weight, axis), axis=axis)
    sweep(model)
    return len(found)
