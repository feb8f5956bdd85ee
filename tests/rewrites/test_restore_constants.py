# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import LAYERS, editable, tiny_bert, tiny_feed
from rewriting import assert_untouched, outputs, parsed, relative_error, rewritten
from unlag.rewrites.restore_constants import restore_constants
from zoo.different_constant import plant, twin

X = np.linspace(-4, 8, 24, dtype=np.float32).reshape(2, 3, 4)

LOST = {
    "a slope": ("y = LeakyRelu<alpha = 0.2>(x)", "y = LeakyRelu(x)"),
    "a bound": ("y = Clip(x, zero, six)", "y = Clip(x, zero, one)"),
    "a factor": ("a = Mul(x, six) y = Relu(a)", "a = Mul(x, one) y = Relu(a)"),
    "a mask's number": ("c = Greater(x, one) m = Where(c, x, far) y = Softmax(m)", "c = Greater(x, one) m = Where(c, x, near) y = Softmax(m)"),
    "the exact form": ("y = Gelu(x)", 'y = Gelu<approximate = "tanh">(x)'),
}  # fmt: skip
SAME = {
    "both far beyond": ("c = Greater(x, one) m = Where(c, x, far) y = Softmax(m)", "c = Greater(x, one) m = Where(c, x, lowest) y = Softmax(m)"),
    "rounded to half precision": ("y = Mul(x, third)", "y = Mul(x, rounded)"),
    "one operator more": ("a = Mul(x, six) y = Relu(a)", "b = Mul(x, one) a = Mul(b, six) y = Relu(a)"),
    "branches in another order": ("a = Mul(x, six) b = Mul(x, one) y = Sub(a, b)", "b = Mul(x, one) a = Mul(x, six) y = Sub(a, b)"),
    "an attention scale, which has a cause of its own": ("k = MatMul(x, w) a = Mul(k, six) y = Softmax(a)", "k = MatMul(x, w) a = Mul(k, one) y = Softmax(a)"),
}  # fmt: skip
NUMBERS = {
    "zero": 0, "one": 1, "six": 6, "far": -1e9, "near": -1, "lowest": np.finfo(np.float16).min, "third": 1 / 3,
    "rounded": np.float16(1 / 3), "w": np.eye(4),
}  # fmt: skip


def model_of(body: str) -> onnx.ModelProto:
    used = {n: np.asarray(v, np.float32) for n, v in NUMBERS.items() if f" {n})" in body or f" {n}," in body}
    return parsed(f"g (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", LOST)
def test_the_standards_number_comes_back(name):
    standard, variant = (model_of(body) for body in LOST[name])
    wanted = outputs(standard, {"x": X})
    assert relative_error(outputs(variant, {"x": X}), wanted) > 1e-5
    after, changed = rewritten(variant, lambda model: restore_constants(model, editable(standard)))
    assert changed == 1
    assert relative_error(outputs(after, {"x": X}), wanted) < 1e-6


@pytest.mark.parametrize("name", SAME)
def test_what_is_no_other_function_stays(name):
    standard, variant = (model_of(body) for body in SAME[name])
    assert_untouched(variant, lambda model: restore_constants(model, editable(standard)))


def test_a_whole_model():
    after, changed = rewritten(plant().variant, lambda model: restore_constants(model, editable(tiny_bert())))
    assert changed == 2 * LAYERS + 1
    assert relative_error(outputs(after, tiny_feed()), outputs(tiny_bert(), tiny_feed())) < 1e-6


def test_rounded_constants_stay():
    assert_untouched(twin().variant, lambda model: restore_constants(model, editable(tiny_bert())))
