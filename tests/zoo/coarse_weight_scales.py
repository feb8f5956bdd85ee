import numpy as np
import onnx_ir as ir

from planting import Pair, flash, tiny_bert
from quantizing import constant_products, dequantize_weight
from unlag.model.graph import opset_of, sweep

OPSET_OF_DEQUANTIZE = 10
INT8_MAX = 127
OUTLIER = 4
"""One scale for MiniLM's own weights costs 0.05 points, too few to be seen in STS-B."""


def plant() -> Pair:
    return Pair(tiny_bert(), {}, flash(int8_weights=True, per_tensor=True), {})


def twin() -> Pair:
    """A scale for each column."""
    return Pair(tiny_bert(), {}, flash(int8_weights=True), {})


def infect(model: ir.Model) -> int:
    """Every weight of a product as int8 with one scale, as if the largest weight were so many times larger."""
    found = constant_products(model) if opset_of(model) >= OPSET_OF_DEQUANTIZE else []
    for node, matrix in found:
        scale = np.float32(OUTLIER * np.abs(matrix).max() / INT8_MAX)
        codes = np.rint(matrix / scale).astype(np.int8)
        dequantize_weight(node, codes, np.array(scale, np.float32))
    sweep(model)
    return len(found)
