# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx

from planting import editable, flash, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.widen_float16 import widen_float16

RNG = np.random.default_rng(0)
HALF = RNG.normal(size=(16, 8)).astype(np.float16)
X = RNG.normal(size=(3, 16)).astype(np.float32)
HALF_ROUNDING = 2e-3


def float16_tensors(model: onnx.ModelProto) -> list[str]:
    return [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16]


def test_an_island_between_casts_becomes_one_product():
    text = "g (float[n, 16] x) => (float[n, 8] y) { h = Cast<to = 10>(x) p = MatMul(h, w) y = Cast<to = 1>(p) }"
    before = parsed(text, w=HALF)
    after, changed = rewritten(before, widen_float16)
    assert changed > 0
    assert kinds(after) == {"MatMul": 1}
    assert_keeps(before, after, HALF_ROUNDING, x=X)
    assert np.array_equal(
        outputs(after, {"x": X})[0],
        outputs(
            parsed("g (float[n, 16] x) => (float[n, 8] y) { y = MatMul(x, w) }", w=HALF.astype(np.float32)), {"x": X}
        )[0],
    )


def test_half_inputs_and_outputs_keep_their_type_behind_one_cast_each():
    text = "g (float16[n, 16] x) => (float16[n, 8] y) { p = MatMul(x, w) s = Softmax(p) y = Add(s, p) }"
    before = parsed(text, w=HALF)
    after, changed = rewritten(before, widen_float16)
    assert changed > 0
    assert kinds(after)["Cast"] == 2
    assert after.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert after.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert_keeps(before, after, HALF_ROUNDING, x=X.astype(np.float16))


def test_a_dequantized_weight_follows_its_scale():
    text = "g (float[n, 16] x) => (float[n, 8] y) { h = Cast<to = 10>(x) w = DequantizeLinear(c, s) p = MatMul(h, w) y = Cast<to = 1>(p) }"
    before = parsed(text, c=RNG.integers(-127, 128, (16, 8)).astype(np.int8), s=np.float16(0.01))
    after, _changed = rewritten(before, widen_float16)
    assert float16_tensors(after) == []
    assert kinds(after) == {"DequantizeLinear": 1, "MatMul": 1}
    assert_keeps(before, after, HALF_ROUNDING, x=X)


def test_constants_in_nodes_are_widened_too():
    text = """g (float[n, 16] x) => (float[n, 16] y) {
        h = Cast<to = 10>(x) k = Constant<value = float16[1] {14336}>() p = Mul(h, k) y = Cast<to = 1>(p) }"""
    before = parsed(text)  # the parser wants float16 as its bits: 14336 is 0.5
    after, changed = rewritten(before, widen_float16)
    assert changed > 0
    assert kinds(after)["Cast"] == 0
    assert_keeps(before, after, HALF_ROUNDING, x=X)


def test_a_body_is_widened_with_its_surroundings():
    text = """g (float[n, 16] x, bool c) => (float[n, 8] y) {
        h = Cast<to = 10>(x) p = MatMul(h, w)
        q = If (c) <then_branch = a () => (float16[n, 8] t) { t = Add(p, p) }, else_branch = b () => (float16[n, 8] e) { e = Neg(p) }>
        y = Cast<to = 1>(q) }"""
    before = parsed(text, w=HALF)
    after, changed = rewritten(before, widen_float16)
    assert changed > 0
    for choice in (True, False):
        assert_keeps(before, after, HALF_ROUNDING, x=X, c=np.array(choice))


def test_a_whole_model_loses_every_cast_but_the_masks():
    before = flash(fp16_activations=True)
    after, _changed = rewritten(before, widen_float16)
    assert float16_tensors(after) == []
    assert kinds(after)["Cast"] == kinds(tiny_bert())["Cast"] == 1
    assert_keeps(before, after, HALF_ROUNDING)


def test_the_check_would_notice_a_weight_that_was_changed():
    before = flash(fp16_activations=True)
    draft = editable(before)
    widen_float16(draft)
    assert_untouched(tiny_bert(), widen_float16)
    broken, _changed = rewritten(before, widen_float16)
    weight = next(t for t in broken.graph.initializer if t.name.endswith("stored"))
    weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * np.float32(1.05)).tobytes()
    feed = {
        "input_ids": np.ones((1, 8), np.int64),
        "attention_mask": np.ones((1, 8), np.int64),
        "token_type_ids": np.zeros((1, 8), np.int64),
    }
    assert relative_error(outputs(broken, feed), outputs(before, feed)) > HALF_ROUNDING


def test_a_cast_of_integers_is_no_float16():
    assert_untouched(parsed("g (int64[n] x) => (float[n] y) { y = Cast<to = 1>(x) }"), widen_float16)
