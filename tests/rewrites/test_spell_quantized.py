"""Operators on codes, spelled as float operators between codes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnxruntime.quantization import QuantFormat

from calibrating import statically_quantized
from planting import cnn_feed, tiny_bert, tiny_cnn, tiny_feed
from quantizing import dynamic
from rewriting import assert_untouched, outputs, relative_error, rewritten
from unlag.rewrites.fuse_attention import fuse_attention
from unlag.rewrites.spell_quantized import spell_quantized

RNG = np.random.default_rng(0)
X = {"x": RNG.uniform(-2, 2, (1, 4, 6, 6)).astype(np.float32)}
HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
SCALES = "<float s = {0.02}, uint8 z = {128}, float t = {0.05}, uint8 y0 = {120}, float ws = {0.01}, int8 wz = {0}>"


def model_of(body: str, result: str = "float[a, b, c, d] y", **weights: np.ndarray) -> onnx.ModelProto:
    text = f"{HEAD} g (float[1, 4, 6, 6] x) => ({result}) {SCALES} {{ xq = QuantizeLinear(x, s, z) {body} }}"
    made = onnx.parser.parse_model(text)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return made


@pytest.mark.parametrize(
    "call",
    [
        "q = com.microsoft.QLinearAdd(xq, s, z, xq, s, z, t, y0)",
        "q = com.microsoft.QLinearMul(xq, s, z, xq, s, z, t, y0)",
        "q = com.microsoft.QLinearSigmoid(xq, s, z, t, y0)",
        "q = com.microsoft.QLinearLeakyRelu <alpha = 0.1> (xq, s, z, t, y0)",
        "q = com.microsoft.QLinearSoftmax <axis = 3, opset = 17> (xq, s, z, t, y0)",
        "q = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (xq, s, z, t, y0)",
        "q = com.microsoft.QLinearGlobalAveragePool(xq, s, z, t, y0)",
        "q = com.microsoft.QLinearConcat <axis = 1> (t, y0, xq, s, z, xq, s, z)",
    ],
)
def test_what_is_spelled_computes_the_same_codes(call):
    before = model_of(f"{call}  y = DequantizeLinear(q, t, y0)")
    after, count = rewritten(before, spell_quantized)
    assert count == 1
    assert not [node for node in after.graph.node if node.op_type.startswith("QLinear")]
    ours, theirs = outputs(after, X)[0], outputs(before, X)[0]
    assert np.abs(ours - theirs).max() <= 0.051, "one code of the result at most"


@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_get_float_weights(bias):
    weights = {"w": RNG.integers(-127, 128, (5, 4, 3, 3)).astype(np.int8)}
    if bias:
        weights["b"] = RNG.integers(-5000, 5000, 5).astype(np.int32)
    call = f"q = QLinearConv(xq, s, z, w, ws, wz, t, y0{', b' if bias else ''})"
    before = model_of(f"{call}  y = DequantizeLinear(q, t, y0)", **weights)
    after, _ = rewritten(before, spell_quantized)
    assert "Conv" in [node.op_type for node in after.graph.node]
    assert np.abs(outputs(after, X)[0] - outputs(before, X)[0]).max() <= 0.051


def test_matrix_products_and_gemm():
    weights = {"w": RNG.integers(-127, 128, (6, 9)).astype(np.int8)}
    before = model_of("q = QLinearMatMul(xq, s, z, w, ws, wz, t, y0)  y = DequantizeLinear(q, t, y0)", **weights)
    after, _ = rewritten(before, spell_quantized)
    assert np.abs(outputs(after, X)[0] - outputs(before, X)[0]).max() <= 0.051
    weights |= {"c": RNG.integers(-5000, 5000, 9).astype(np.int32), "shape": np.array([-1, 6], np.int64)}
    call = "r = Reshape(xq, shape)  y = com.microsoft.QGemm(r, s, z, w, ws, wz, c)"
    before = model_of(call, "float[n, m] y", **weights)
    after, _ = rewritten(before, spell_quantized)
    assert relative_error(outputs(after, X), outputs(before, X)) < 1e-5


def test_attention_on_codes_is_attention_on_floats():
    fused, count = rewritten(tiny_bert(), fuse_attention)
    assert count
    before = dynamic(fused, op_types=["Attention"], per_channel=True)
    assert "QAttention" in [node.op_type for node in before.graph.node]
    after, count = rewritten(before, spell_quantized)
    kinds = [node.op_type for node in after.graph.node]
    assert count == kinds.count("Attention") > 0
    assert "QAttention" not in kinds
    feed = tiny_feed()
    assert relative_error(outputs(after, feed), outputs(before, feed)) < 1e-3, "codes of the input are still read"


@pytest.mark.parametrize(("make", "feed"), [(tiny_bert, tiny_feed()), (tiny_cnn, cnn_feed())])
def test_whole_models_stay_near(make, feed):
    before = statically_quantized(make(), feed, form=QuantFormat.QOperator)
    after, count = rewritten(before, spell_quantized)
    assert count > 3
    left = {node.op_type for node in after.graph.node if node.op_type.startswith("Q")} - {"QuantizeLinear"}
    assert not left
    assert relative_error(outputs(after, feed), outputs(before, feed)) < 0.1


def test_channels_last_stays():
    call = "q = com.microsoft.QLinearGlobalAveragePool <channels_last = 1> (xq, s, z, t, y0)"
    assert_untouched(model_of(f"{call}  y = DequantizeLinear(q, t, y0)"), spell_quantized)
