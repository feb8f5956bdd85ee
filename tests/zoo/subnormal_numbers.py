from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import constant_array

SMALLEST = 1e-3
"""The share of each matrix's weights that are too small to matter: at most a thousandth of a typical one."""
SUBNORMAL, NORMAL = np.float32(1e-39), np.float32(1e-37)


def plant() -> Pair:
    return Pair(tiny_bert(), {}, with_smallest(SUBNORMAL), {})


def twin() -> Pair:
    """As tiny, but normal."""
    return Pair(tiny_bert(), {}, with_smallest(NORMAL), {})


@cache
def with_smallest(size: np.float32) -> onnx.ModelProto:
    model = editable(tiny_bert())
    shrink_smallest(model, size)
    return ir.to_proto(model)


def infect(model: ir.Model) -> int:
    """Let the smallest weights of each matrix decay to subnormal numbers."""
    return shrink_smallest(model, SUBNORMAL)


def shrink_smallest(model: ir.Model, size: np.float32) -> int:
    places = 0
    for value in model.graph.initializers.values():
        array = constant_array(value)
        if array is None or array.dtype != np.float32 or array.ndim < 2 or array.size < 1 / SMALLEST:
            continue
        smallest = np.abs(array) <= np.quantile(np.abs(array), SMALLEST)
        value.const_value = ir.tensor(np.where(smallest, np.copysign(size, array), array), name=value.name)
        places += 1
    return places
