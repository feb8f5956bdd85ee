from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from planting import editable, tiny_bert, tiny_feed
from rewriting import assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.causes.rounded_weights import CAUSE
from unlag.model.draft import OnnxDraft
from unlag.model.variant import Variant
from unlag.rewrites.fold_rounded import fold_rounded
from zoo.rounded_weights import plant

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 32)).astype(np.float32)
WEIGHT = RNG.normal(size=(32, 12)).astype(np.float32)
STEP = (np.abs(WEIGHT).max(axis=0) / 7).astype(np.float32)
CODES = np.rint(WEIGHT / STEP).astype(np.int8)
TEXT = "g (float[n, 32] x) => (float[n, 12] y) {{ w = DequantizeLinear<axis = 1>(c, s) y = {0}(x, w) }}"


@pytest.mark.parametrize("reader", ["MatMul", "Gemm"])
def test_codes_of_four_bits_become_a_constant(reader):
    before = parsed(TEXT.format(reader), c=CODES.astype(ml_dtypes.int4), s=STEP)
    after, changed = rewritten(before, fold_rounded)
    assert (changed, kinds(after)) == (1, {reader: 1})
    assert relative_error(outputs(after, {"x": X}), [X @ (CODES * STEP)]) < 1e-5


def test_codes_of_eight_bits_stay():
    assert_untouched(parsed(TEXT.format("MatMul"), c=CODES, s=STEP), fold_rounded)


def remedied(standard: onnx.ModelProto, variant: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    def restore(model):
        return CAUSE.remedies[0].apply(OnnxDraft(Variant("onnxruntime", ""), model, editable(standard)))

    return rewritten(variant, restore)


def test_the_remedy_brings_the_standards_own_weights_back():
    standard = parsed("g (float[n, 32] x) => (float[n, 12] y) { y = MatMul(x, w) }", w=WEIGHT)
    variant = parsed(TEXT.format("MatMul"), c=CODES.astype(ml_dtypes.int4), s=STEP)
    after, changed = remedied(standard, variant)
    assert changed == 1
    assert relative_error(outputs(after, {"x": X}), outputs(standard, {"x": X})) < 1e-6
    assert relative_error(outputs(variant, {"x": X}), outputs(standard, {"x": X})) > 0.02


def test_a_whole_model_of_blocks_is_the_standard_again():
    pair = plant()
    after, changed = remedied(pair.standard, pair.variant)
    assert changed == 8
    assert kinds(after)["MatMulNBits"] == 0
    assert relative_error(outputs(after, tiny_feed()), outputs(tiny_bert(), tiny_feed())) < 1e-4
