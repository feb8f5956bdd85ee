"""Activations that were rounded to codes, and are not any more."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from rewriting import TIGHT, outputs, relative_error, rewritten
from unlag.rewrites.strip_quantization import strip_quantization

X = {"x": np.random.default_rng(0).uniform(-2, 2, (4, 8)).astype(np.float32)}
CONSTANTS = "<float s = {0.02}, uint8 z = {128}, uint8 low = {0}>"


def model_of(body: str, result: str = "float[n, 8] y", **weights: np.ndarray) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x) => ({result}) {CONSTANTS} {{ {body} }}'
    )
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return made


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    "body",
    [
        "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Tanh(d)",
        "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  e = DequantizeLinear(q, s, z)  y = Add(d, e)",
        "q = QuantizeLinear(x, s, z)  t = Transpose (q)  u = Transpose (t)  d = DequantizeLinear(u, s, z)  y = Tanh(d)",
        "h = Tanh(x)  q = QuantizeLinear(h, s, z)  y = DequantizeLinear(q, s, z)",
        "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)",
    ],
)
def test_nothing_is_rounded_and_nothing_else_changes(body):
    before = model_of(body)
    after, count = rewritten(before, strip_quantization)
    assert count == 1
    assert not {"QuantizeLinear", "DequantizeLinear"} & {*kinds(after)}
    rounded, exact = outputs(before, X), outputs(after, X)
    assert 1e-4 < relative_error(rounded, exact) < 0.03
    plain = onnx.ModelProto()
    plain.CopyFrom(before)
    assert exact[0].shape == rounded[0].shape


def test_what_pad_fills_in_becomes_a_number_too():
    body = "q = QuantizeLinear(x, s, z)  p = Pad (q, pads, z)  y = DequantizeLinear(p, s, z)"
    before = model_of(body, "float[n, m] y", pads=np.array([0, 1, 0, 1], np.int64))
    after, _ = rewritten(before, strip_quantization)
    exact = outputs(after, X)[0]
    assert not exact[:, 0].any()
    assert not exact[:, -1].any()
    assert np.array_equal(exact[:, 1:-1], X["x"])


@pytest.mark.parametrize("had_relu", [True, False])
def test_a_relu_that_codes_took_over_comes_back_behind_a_product(had_relu):
    body = "m = MatMul(x, w)  q = QuantizeLinear(m, s, low)  y = DequantizeLinear(q, s, low)"
    before = model_of(body, w=np.eye(8, dtype=np.float32))
    after, _ = rewritten(before, lambda model: strip_quantization(model, had_relu=had_relu))
    assert ("Relu" in kinds(after)) is had_relu
    expected = np.maximum(X["x"], 0) if had_relu else X["x"]
    assert relative_error(outputs(after, X), [expected]) < TIGHT


def test_masks_and_scores_keep_their_negative_numbers():
    """A quantizer that saw no padding gives the mask no code below zero."""
    body = "m = Mul(x, s)  q = QuantizeLinear(m, s, low)  d = DequantizeLinear(q, s, low)  y = Softmax(d)"
    after, _ = rewritten(model_of(body), strip_quantization)
    assert "Relu" not in kinds(after)


def test_codes_that_something_else_reads_stay():
    body = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Tanh(d)  c = Cast <to = 1> (q)"
    before = model_of(body, "float[n, 8] y, float[n, 8] c")
    after, count = rewritten(before, strip_quantization)
    assert count == 0
    assert "QuantizeLinear" in kinds(after)


def test_a_table_of_codes_becomes_one_of_floats():
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (int64[n] i) => (float[n, 8] y) {CONSTANTS}'
        " { r = Gather(t, i)  y = DequantizeLinear(r, s, z) }"
    )
    codes = np.random.default_rng(0).integers(0, 256, (20, 8)).astype(np.uint8)
    made.graph.initializer.append(onnx.numpy_helper.from_array(codes, "t"))
    after, count = rewritten(made, strip_quantization)
    assert count == 1
    assert kinds(after) == ["Gather"]
    feed = {"i": np.array([0, 7, 19])}
    assert relative_error(outputs(after, feed), outputs(made, feed)) < TIGHT
