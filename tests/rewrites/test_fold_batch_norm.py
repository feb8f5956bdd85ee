# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import cnn_feed, editable, tiny_cnn
from rewriting import assert_keeps, assert_untouched, kinds, parsed, rewritten
from unlag.rewrites.fold_batch_norm import fold_batch_norm
from zoo.unfolded_batch_norm import infect

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
ROWS = RNG.standard_normal((2, 6)).astype(np.float32)


def _row(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


NUMBERS = {
    "w": _row(4, 3, 3, 3), "b": _row(4), "g": _row(4), "o": _row(4), "m": _row(4), "v": _row(4), "c3": _row(4, 1, 1), "c4": _row(1, 4, 1, 1),
    "wt": _row(3, 4, 3, 3), "wg": _row(6, 4), "r": _row(4), "one": np.float32(2), "wide": _row(1, 1, 6, 6), "zero": np.zeros((4, 1, 1), np.float32),
}  # fmt: skip

FOLDED = {
    "batch normalization": ("a = Conv(x, w) n = BatchNormalization(a, g, o, m, v) y = Relu(n)", 1),
    "with a bias": ("a = Conv(x, w, b) n = BatchNormalization(a, g, o, m, v) y = Relu(n)", 1),
    "three operators": ("a = Conv(x, w, b) d = Sub(a, c3) n = Mul(c4, d) k = Add(n, c3) y = Relu(k)", 3),
    "a division": ("a = Conv(x, w, b) y = Div(a, c4)", 1),
    "transposed": ("a = ConvTranspose(x, wt) n = BatchNormalization(a, g, o, m, v) y = Relu(n)", 1),
    "a weight that two read": ("a = Conv(x, w) n = Mul(a, c3) k = Conv(x, w) y = Add(n, k)", 1),
}
GEMM = {
    "plain": ("a = Gemm(x, wg, b) y = BatchNormalization(a, g, o, m, v)", 1),
    "a row": ("a = Gemm(x, wg) n = Mul(a, r) y = Add(n, r)", 2),
}
KEPT = {
    "read elsewhere too": "a = Conv(x, w) n = Mul(a, c3) y = Add(n, a)",
    "an activation between": "a = Conv(x, w) k = Relu(a) y = Mul(k, c3)",
    "along another axis": "a = Conv(x, w) y = Mul(a, wide)",
    "subtracted from": "a = Conv(x, w) y = Sub(c3, a)",
    "divided by zero": "a = Conv(x, w) y = Div(a, zero)",
    "one number for all": "a = Conv(x, w) y = Mul(a, one)",
}


def model_of(body: str, shape: str = "2, 3, 8, 8") -> onnx.ModelProto:
    used = {name: value for name, value in NUMBERS.items() if re.search(rf"[(,]\s*{name}\s*[,)]", body)}
    return parsed(f"g (float[{shape}] x) => (float y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", FOLDED)
def test_what_scales_channels_goes_into_the_weights(name):
    body, count = FOLDED[name]
    before = model_of(body)
    after, changed = rewritten(before, fold_batch_norm)
    assert changed == count
    assert len(after.graph.node) == len(before.graph.node) - count
    assert_keeps(before, after, x=X)


@pytest.mark.parametrize("name", GEMM)
def test_rows_too(name):
    body, count = GEMM[name]
    before = model_of(body, "2, 6")
    after, changed = rewritten(before, fold_batch_norm)
    assert changed == count
    assert kinds(after) == {"Gemm": 1}
    assert_keeps(before, after, x=ROWS)


@pytest.mark.parametrize("name", KEPT)
def test_what_can_not_be_folded_stays(name):
    assert_untouched(model_of(KEPT[name]), fold_batch_norm)


def test_a_whole_model():
    draft = editable(tiny_cnn())
    infect(draft)
    before = ir.to_proto(draft)
    after, changed = rewritten(before, fold_batch_norm)
    assert changed == 3 * 4
    assert kinds(after) == kinds(tiny_cnn())
    assert_keeps(before, after, **cnn_feed())
    assert_keeps(tiny_cnn(), after, **cnn_feed())


def test_a_clean_model_is_left_alone():
    assert_untouched(tiny_cnn(), fold_batch_norm)
