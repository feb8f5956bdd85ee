import numpy as np
import onnx_ir as ir

from planting import NEW_X86, Pair, editable, flash, tiny_bert
from quantizing import block_product, constant_products

SMALLEST = 32 * 32
BLOCK = 128
LEVELS = 3
"""On each side of zero. 4 bits alone cost MiniLM 0.19 points, too few to be seen in STS-B."""


def plant() -> Pair:
    infected = editable(tiny_bert())
    infect(infected)
    return Pair(tiny_bert(), {}, ir.to_proto(infected), {}, isa=NEW_X86)


def twin() -> Pair:
    """8 bits, with a scale for each column."""
    return Pair(tiny_bert(), {}, flash(int8_weights=True), {}, isa=NEW_X86)


def infect(model: ir.Model) -> int:
    """4-bit codes of weights that had 3 bits before, one scale for 128 of them."""
    found = [(node, matrix) for node, matrix in constant_products(model) if matrix.size >= SMALLEST]
    for node, matrix in found:
        block_product(model, node, _to_levels(matrix), bits=4, block=BLOCK, accuracy_level=4)
    return len(found)


def _to_levels(matrix: np.ndarray) -> np.ndarray:
    """Each column rounded to few levels, in blocks of rows."""
    blocks = [matrix[start : start + BLOCK] for start in range(0, len(matrix), BLOCK)]
    steps = [np.maximum(np.abs(block).max(axis=0), 1e-12) / LEVELS for block in blocks]
    rounded = [np.rint(block / step) * step for block, step in zip(blocks, steps, strict=True)]
    return np.concatenate(rounded).astype(np.float32)
