"""No ``infect``: only nets of thin convolutions lose by the blocked layout, which an edit does not make of another."""

from functools import cache

import numpy as np
import onnx
from onnx import helper

from planting import Pair
from unlag.runtimes.contract import Kind, Operator, Profile

LAYERS, CHANNELS, SIZE = 6, 8, 32
PLAIN_OPTIONS = {"optimization": "extended"}
"""The variant differs by its layout only."""


def plant() -> Pair:
    """Depthwise 1x1 convolutions between operators without a blocked kernel; times as measured on 128x128."""
    return _pair(reorder_ms=0.025, blocked_ms=0.02, plain_ms=0.01)


def twin() -> Pair:
    """As many copies, but the blocked kernel saves more than they cost."""
    return _pair(reorder_ms=0.005, blocked_ms=0.02, plain_ms=0.09)


def _pair(reorder_ms: float, blocked_ms: float, plain_ms: float) -> Pair:
    absolute = _operator("Abs", "elementwise", 0.005)
    blocked = [
        _operator("ReorderInput", "layout", reorder_ms),
        _operator("Conv", "gemm", blocked_ms),
        _operator("ReorderOutput", "layout", reorder_ms),
        absolute,
    ]
    plain = [_operator("FusedConv", "gemm", plain_ms), absolute]
    image = np.random.default_rng(0).standard_normal((1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    return Pair(
        thin_cnn(),
        PLAIN_OPTIONS,
        thin_cnn(),
        {},
        standard_profile=Profile((*plain * LAYERS,), 1.0, 5),
        variant_profile=Profile((*blocked * LAYERS,), 1.0, 5),
        feed={"image": image},
    )


@cache
def thin_cnn() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "image"
    for layer in range(LAYERS):
        kernel = rng.standard_normal((CHANNELS, 1, 1, 1)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(kernel, f"{layer}.weight"))
        nodes.append(helper.make_node("Conv", [x, f"{layer}.weight"], [f"{layer}.conv"], group=CHANNELS))
        nodes.append(helper.make_node("Relu", [f"{layer}.conv"], [f"{layer}.relu"]))
        x = "features" if layer == LAYERS - 1 else f"{layer}.abs"
        nodes.append(helper.make_node("Abs", [f"{layer}.relu"], [x]))
    shape = [1, CHANNELS, SIZE, SIZE]
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("image", "features")]
    graph = helper.make_graph(nodes, "thin", tensors[:1], tensors[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _operator(op_type: str, kind: Kind, time_ms: float) -> Operator:
    return Operator(op_type.lower(), op_type, kind, "float32", time_ms, "CPUExecutionProvider", (), ())
