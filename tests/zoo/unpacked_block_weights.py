import numpy as np
import onnx_ir as ir

from planting import NEW_X86, Pair, editable
from quantizing import block_product, constant_products, profiled
from zoo.small_dynamic_products import layers

SMALLEST = 64 * 64
FEWEST = 3
"""A network with fewer products spends its time elsewhere."""


def plant() -> Pair:
    """8-bit blocks that are unpacked to floats at every run."""
    return _pair(accuracy_level=0)


def twin() -> Pair:
    """The same blocks, computed in integers, for one row: the weights are what is read."""
    return _pair(accuracy_level=4)


def infect(model: ir.Model) -> int:
    """Every second of the larger products."""
    return _pack(model, accuracy_level=0, every=2)


def _pair(accuracy_level: int) -> Pair:
    model = layers([(1024, 1024)] * 3)
    packed = editable(model)
    _pack(packed, accuracy_level)
    feed = {"x": np.random.default_rng(0).standard_normal((1, 1, 1024)).astype(np.float32)}
    return profiled(Pair(model, {}, ir.to_proto(packed), {}, isa=NEW_X86, feed=feed))


def _pack(model: ir.Model, accuracy_level: int, every: int = 1) -> int:
    """Larger products by constant weights as blocks of 32 codes of 8 bits."""
    found = [(node, matrix) for node, matrix in constant_products(model) if matrix.size >= SMALLEST]
    chosen = found[::every] if len(found) >= FEWEST else []
    for node, matrix in chosen:
        block_product(model, node, matrix, bits=8, accuracy_level=accuracy_level)
    return len(chosen)
