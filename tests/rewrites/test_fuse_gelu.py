# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import pytest

from planting import LAYERS, flash, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.fuse_gelu import fuse_gelu
from zoo.unfused_activation import plant

X = np.linspace(-6, 6, 64, dtype=np.float32).reshape(4, 16)
NUMBERS = {
    "root": np.float32(2**0.5), "inverse": np.float32(0.5**0.5), "one": np.float32(1), "half": np.float32(0.5), "two": np.float32(2),
    "cube": np.float32(3), "small": np.float32(0.044715), "factor": np.float32((2 / np.pi) ** 0.5),
}  # fmt: skip

SPELLINGS = {
    "x (1 + erf) / 2": "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)",
    "by the inverse": "a = Mul(x, inverse) b = Erf(a) c = Add(one, b) d = Mul(c, x) y = Mul(half, d)",
    "half of the bracket first": "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(half, c) y = Mul(x, d)",
    "half of x first": "h = Mul(x, half) a = Div(x, root) b = Erf(a) c = Add(b, one) y = Mul(h, c)",
    "halved by a division": "a = Mul(inverse, x) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Div(d, two)",
    "by tanh": "p = Pow(x, cube) q = Mul(small, p) r = Add(x, q) s = Mul(factor, r) t = Tanh(s) u = Add(one, t) v = Mul(x, u) y = Mul(half, v)",
    "by tanh, with products": "p = Mul(x, x) o = Mul(p, x) q = Mul(small, o) r = Add(x, q) s = Mul(r, factor) t = Tanh(s) u = Add(t, one) h = Mul(x, half) y = Mul(h, u)",
}  # fmt: skip

OTHERS = {
    "another factor": "a = Mul(x, half) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)",
    "not halved": "a = Div(x, root) b = Erf(a) c = Add(b, one) y = Mul(x, c)",
    "erf alone": "y = Erf(x)",
    "another x": "z = Relu(x) a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(z, c) y = Mul(d, half)",
}


def model_of(body: str):
    used = {name: value for name, value in NUMBERS.items() if f" {name})" in body or f"({name}," in body}
    return parsed(f"g (float[4, 16] x) => (float[4, 16] y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_becomes_one_operator(name):
    before = model_of(SPELLINGS[name])
    after, changed = rewritten(before, fuse_gelu)
    assert changed == 1
    assert kinds(after) == {"FastGelu" if "tanh" in name else "Gelu": 1}
    assert_keeps(before, after, 1e-6, x=X)


def test_the_other_kind_of_gelu_would_be_noticed():
    exact, by_tanh = (rewritten(model_of(SPELLINGS[name]), fuse_gelu)[0] for name in ("by the inverse", "by tanh"))
    assert relative_error(outputs(exact, {"x": X}), outputs(by_tanh, {"x": X})) > 1e-5


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_it_stays(name):
    assert_untouched(model_of(OTHERS[name]), fuse_gelu)


def test_a_spelling_that_the_runtime_does_not_know():
    before = plant().variant
    after, changed = rewritten(before, fuse_gelu)
    assert changed == LAYERS
    assert_keeps(before, after)


def test_inner_values_that_are_read_elsewhere_stay():
    text = "g (float[4, 16] x) => (float[4, 16] y, float[4, 16] c) { a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }"
    constants = {name: NUMBERS[name] for name in ("root", "one", "half")}
    before = parsed(text, **constants)
    after, _changed = rewritten(before, fuse_gelu)
    assert_keeps(before, after, 1e-6, x=X)


def test_a_half_precision_gelu_stays():
    text = "g (float16[4, 16] x) => (float16[4, 16] y) { a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }"
    assert_untouched(
        parsed(text, **{name: NUMBERS[name].astype(np.float16) for name in ("root", "one", "half")}), fuse_gelu
    )


def test_a_whole_model():
    before = flash(extra_copies=True)
    after, changed = rewritten(before, fuse_gelu)
    assert changed == LAYERS
    assert kinds(after)["Gelu"] == LAYERS
    assert_keeps(before, after)
    assert kinds(tiny_bert())["Gelu"] == 0
