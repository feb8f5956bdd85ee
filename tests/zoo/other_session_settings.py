"""No ``infect``: no entry that is left to this cause costs time on every float model."""

from functools import cache

import numpy as np
import onnx
from onnx import helper

from planting import Pair

SIZE, BLOCK = 256, 32
FORCED = {"config.mlas.qnbit.force_fp32": "1"}
"""Twice the time for one row, with weights of 1024x1024."""


def plant() -> Pair:
    """A kernel for 4-bit weights that is made to compute in float32."""
    return _pair({}, FORCED)


def twin() -> Pair:
    """Settings, but the same on both sides; threads have a cause of their own."""
    return _pair({"threads": "1", **FORCED}, {"threads": "1", **FORCED})


def _pair(standard: dict[str, str], variant: dict[str, str]) -> Pair:
    row = np.random.default_rng(0).standard_normal((1, SIZE)).astype(np.float32)
    return Pair(four_bit(), standard, four_bit(), variant, feed={"x": row})


@cache
def four_bit() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (SIZE, SIZE // BLOCK, BLOCK // 2), dtype=np.uint8)
    scales = rng.random(SIZE * SIZE // BLOCK).astype(np.float32)
    weights = [onnx.numpy_helper.from_array(codes, "codes"), onnx.numpy_helper.from_array(scales, "scales")]
    form = {"K": SIZE, "N": SIZE, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", **form)
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, SIZE]) for name in ("x", "y")]
    graph = helper.make_graph([node], "four_bit", tensors[:1], tensors[1:], weights)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)
