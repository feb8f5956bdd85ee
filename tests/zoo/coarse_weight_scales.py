import onnx_ir as ir

from planting import Pair, flash, tiny_bert
from quantizing import constant_products, dequantize_weight
from unlag.demo.flash import quantize_weight
from unlag.model.graph import opset_of, sweep

OPSET_OF_DEQUANTIZE = 10


def plant() -> Pair:
    return Pair(tiny_bert(), {}, flash(int8_weights=True, per_tensor=True), {})


def twin() -> Pair:
    """A scale for each column."""
    return Pair(tiny_bert(), {}, flash(int8_weights=True), {})


def infect(model: ir.Model) -> int:
    """Every weight of a product as int8 with one scale."""
    found = constant_products(model) if opset_of(model) >= OPSET_OF_DEQUANTIZE else []
    for node, matrix in found:
        dequantize_weight(node, *quantize_weight(matrix, None))
    sweep(model)
    return len(found)
