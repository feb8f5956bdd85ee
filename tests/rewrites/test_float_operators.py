from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantFormat

from calibrating import statically_quantized
from planting import cnn_feed, tiny_bert, tiny_cnn, tiny_feed
from rewriting import assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.float_operators import float_operators
from zoo import unoptimized_integer_kernel as zoo

RNG = np.random.default_rng(0)
NEAR = 0.05
"""Of the largest output: what rounding activations to 8 bits changes."""

S, Z = np.float32(0.03), np.uint8(128)
Q = "DequantizeLinear(q{0}, s, z)"


def everything(model: ir.Model) -> int:
    return float_operators(model, lambda _node: True)


def only(*op_types: str) -> Callable[[ir.Model], int]:
    return lambda model: float_operators(model, lambda node: node.op_type in op_types)


def error(a: onnx.ModelProto, b: onnx.ModelProto, feed: dict[str, np.ndarray]) -> float:
    return relative_error(outputs(a, feed), outputs(b, feed))


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_statically_quantized_network_is_a_float_one_again(form):
    names = [node.name for node in tiny_cnn().graph.node if node.op_type == "Conv"]
    before = statically_quantized(tiny_cnn(), cnn_feed(), form=form, nodes=names)
    after, changed = rewritten(before, everything)
    assert changed == 4
    left = kinds(after)
    assert left["Conv"] == 4
    assert left["QLinearConv"] == left["QuantizeLinear"] == left["DequantizeLinear"] == 0
    assert error(after, tiny_cnn(), cnn_feed()) < NEAR
    assert error(after, tiny_cnn(), cnn_feed()) <= error(before, tiny_cnn(), cnn_feed())


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_one_convolution_alone_keeps_the_codes_that_its_neighbors_need(form):
    names = [node.name for node in tiny_cnn().graph.node if node.op_type == "Conv"]
    before = statically_quantized(tiny_cnn(), cnn_feed(), form=form, nodes=names)

    def depthwise(model: ir.Model) -> int:
        return float_operators(model, lambda node: node.attributes.get_int("group", 1) > 1)

    after, changed = rewritten(before, depthwise)
    assert changed == 1
    if form == QuantFormat.QDQ:
        assert kinds(after)["QuantizeLinear"] == kinds(before)["QuantizeLinear"]
    else:
        assert kinds(after)["QLinearConv"] == 3
    assert error(after, tiny_cnn(), cnn_feed()) < NEAR
    assert error(after, before, cnn_feed()) < NEAR


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_statically_quantized_bert(form):
    names = [node.name for node in tiny_bert().graph.node if node.op_type == "MatMul"]
    before = statically_quantized(tiny_bert(), tiny_feed(), form=form, nodes=names)
    after, changed = rewritten(before, everything)
    assert changed >= 8
    assert kinds(after)["QLinearMatMul"] == 0
    assert error(after, tiny_bert(), tiny_feed()) <= error(before, tiny_bert(), tiny_feed()) * 1.1


def chain(text: str) -> onnx.ModelProto:
    weight = (RNG.normal(size=(4, 4, 3, 3)) * 20).astype(np.int8)
    constants = {"s": S, "z": Z, "t": np.float32(0.01), "u": np.int8(0), "w": weight}
    graph = f"g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {{ {text} }}"
    return parsed(graph, **constants)


SOFTMAX = """a = Sin(x) b = QuantizeLinear(a, s, z) c = DequantizeLinear(b, s, z) d = Softmax<axis = -1>(c)
    e = QuantizeLinear(d, t, z) f = DequantizeLinear(e, t, z) y = Neg(f)"""
POOL_BEHIND_CONVOLUTION = """a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) k = DequantizeLinear(w, t, u)
    c = Conv<pads = [1, 1, 1, 1]>(b, k) r = Relu(c) d = QuantizeLinear(r, s, z) e = DequantizeLinear(d, s, z)
    f = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(e) h = QuantizeLinear(f, s, z)
    y = DequantizeLinear(h, s, z)"""


def test_an_operator_without_weights_loses_its_codes_on_both_sides():
    before = chain(SOFTMAX)
    after, changed = rewritten(before, only("Softmax"))
    assert (changed, kinds(after)) == (1, {"Sin": 1, "Softmax": 1, "Neg": 1})
    assert error(after, before, {"x": RNG.normal(size=(1, 4, 6, 6)).astype(np.float32)}) < NEAR


def test_pooling_behind_an_integer_convolution_stays():
    assert_untouched(chain(POOL_BEHIND_CONVOLUTION), only("MaxPool"))


def test_pooling_goes_with_its_convolution():
    before = chain(POOL_BEHIND_CONVOLUTION)
    after, changed = rewritten(before, only("MaxPool", "Conv"))
    assert (changed, kinds(after)) == (2, {"Conv": 1, "Relu": 1, "MaxPool": 1})
    assert error(after, before, {"x": RNG.normal(size=(1, 4, 6, 6)).astype(np.float32)}) < NEAR


def test_weight_only_codes_stay():
    weight = RNG.integers(-127, 128, (16, 8)).astype(np.int8)
    text = "g (float[n, 16] x) => (float[n, 8] y) { w = DequantizeLinear(c, s) y = MatMul(x, w) }"
    assert_untouched(parsed(text, c=weight, s=S), everything)


def test_the_infection_is_undone():
    pair = zoo.plant()
    after, changed = rewritten(pair.variant, only("Conv"))
    assert changed == 3
    assert kinds(after) == kinds(pair.standard)
    assert error(after, pair.standard, pair.feed) < NEAR


def test_float_models_stay():
    assert_untouched(tiny_bert(), everything)
    assert_untouched(tiny_cnn(), everything)
