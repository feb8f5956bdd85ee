import onnx_ir as ir

from planting import NEW_X86, Pair, editable, flash, tiny_bert
from quantizing import block_product, constant_products

SMALLEST = 32 * 32


def plant() -> Pair:
    infected = editable(tiny_bert())
    infect(infected)
    return Pair(tiny_bert(), {}, ir.to_proto(infected), {}, isa=NEW_X86)


def twin() -> Pair:
    """8 bits, with a scale for each column."""
    return Pair(tiny_bert(), {}, flash(int8_weights=True), {}, isa=NEW_X86)


def infect(model: ir.Model) -> int:
    """4-bit codes, rounded to nearest, one scale for 128 of them."""
    found = [(node, matrix) for node, matrix in constant_products(model) if matrix.size >= SMALLEST]
    for node, matrix in found:
        block_product(model, node, matrix, bits=4, block=128, accuracy_level=4)
    return len(found)
