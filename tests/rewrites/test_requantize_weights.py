# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import editable, flash, tiny_bert, tiny_feed
from rewriting import assert_untouched, outputs, parsed, relative_error, rewritten
from unlag.observe.align import align_weights
from unlag.rewrites.requantize_weights import requantize_from

RNG = np.random.default_rng(0)
WEIGHT = (RNG.normal(size=(32, 16)) * np.geomspace(0.01, 1.0, 16)).astype(np.float32)
X = RNG.normal(size=(5, 32)).astype(np.float32)
SCALE = np.float32(np.abs(WEIGHT).max() / 127)
CODES = np.rint(WEIGHT / SCALE).astype(np.int8)
UNSIGNED = (CODES.astype(np.int16) + 128).astype(np.uint8)

CHAINS = {
    "dequantize": ("w = DequantizeLinear(c, s)", {"c": CODES, "s": SCALE}),
    "dequantize with zero": ("w = DequantizeLinear(c, s, z)", {"c": UNSIGNED, "s": SCALE, "z": np.uint8(128)}),
    "dequantize and turn": ("d = DequantizeLinear(c, s) w = Transpose<perm = [1, 0]>(d)", {"c": np.ascontiguousarray(CODES.T), "s": SCALE}),
    "cast and mul": ("f = Cast<to = 1>(c) w = Mul(f, s)", {"c": CODES, "s": SCALE}),
    "cast, sub and mul": ("f = Cast<to = 1>(c) d = Sub(f, z) w = Mul(d, s)", {"c": UNSIGNED, "s": SCALE, "z": np.float32(128)}),
}  # fmt: skip


def product(body: str, **constants: np.ndarray) -> onnx.ModelProto:
    return parsed(f"g (float[n, 32] x) => (float[n, 16] y) {{ {body} y = MatMul(x, w) }}", **constants)


def requantize(standard: onnx.ModelProto):
    def rewrite(model: ir.Model) -> int:
        original = editable(standard)
        return requantize_from(model, original, align_weights(original, model))

    return rewrite


@pytest.mark.parametrize("chain", CHAINS)
def test_columns_of_small_range_come_nearer_to_the_standard(chain):
    text, constants = CHAINS[chain]
    standard, before = product("", w=WEIGHT), product(text, **constants)
    after, changed = rewritten(before, requantize(standard))
    assert changed == 1
    truth = outputs(standard, {"x": X})[0]
    errors = [
        np.abs(outputs(model, {"x": X})[0] - truth).max(axis=0) / np.abs(truth).max(axis=0) for model in (before, after)
    ]
    assert np.median(errors[1]) < 0.1 * np.median(errors[0]) or np.median(errors[1]) < 0.006
    assert errors[1].max() < 0.03 < errors[0].max()


def test_gemm_that_reads_the_weight_turned():
    text = "g (float[n, 32] x) => (float[n, 16] y) {{ {} y = Gemm<transB = 1>(x, w) }}"
    standard = parsed(text.format(""), w=np.ascontiguousarray(WEIGHT.T))
    before = parsed(text.format("w = DequantizeLinear(c, s)"), c=np.ascontiguousarray(CODES.T), s=SCALE)
    after, changed = rewritten(before, requantize(standard))
    assert changed == 1
    truth = outputs(standard, {"x": X})
    assert relative_error(outputs(after, {"x": X}), truth) < relative_error(outputs(before, {"x": X}), truth)


def test_a_whole_model_comes_nearer():
    before = flash(int8_weights=True, per_tensor=True)
    after, changed = rewritten(before, requantize(tiny_bert()))
    assert changed == 8 + 2
    truth = outputs(tiny_bert(), tiny_feed())
    assert relative_error(outputs(after, tiny_feed()), truth) < 0.5 * relative_error(
        outputs(before, tiny_feed()), truth
    )


def test_separate_projections_take_their_columns_of_a_packed_one():
    before = flash(int8_weights=True, per_tensor=True, segmented_qkv=True)
    after, changed = rewritten(before, requantize(tiny_bert()))
    assert changed == 12 + 2
    truth = outputs(tiny_bert(), tiny_feed())
    assert relative_error(outputs(after, tiny_feed()), truth) < 0.5 * relative_error(
        outputs(before, tiny_feed()), truth
    )


def test_weights_of_another_model_are_not_taken():
    assert_untouched(flash(int8_weights=True, per_tensor=True), requantize(tiny_bert(seed=1)))


def test_a_scale_for_each_column_is_fine_already():
    text, constants = "w = DequantizeLinear<axis = 1>(c, s)", {"c": CODES, "s": np.full(16, SCALE)}
    assert_untouched(product(text, **constants), requantize(product("", w=WEIGHT)))


def test_a_float_model_is_left_alone():
    assert_untouched(tiny_bert(), requantize(tiny_bert()))
