# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from planting import LAYERS, editable, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.fuse_layer_norm import fuse_layer_norm
from zoo.unfused_layer_norm import spell_out

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((2, 3, 80)) * np.array([1, 1e-3, 30])[None, :, None]).astype(np.float32)
NUMBERS = {
    "g": RNG.standard_normal(80).astype(np.float32), "b": RNG.standard_normal(80).astype(np.float32),
    "g3": RNG.standard_normal((1, 1, 80)).astype(np.float32),
    "two": np.float32(2), "half": np.float32(0.5), "minus": np.float32(-0.5), "one": np.float32(1), "eps": np.float32(1e-5),
    "last": np.array([-1]), "second": np.array([2]), "middle": np.array([1]), "count": np.float32(80), "less": np.float32(79),
}  # fmt: skip
HEAD = "m = ReduceMean(x, last) d = Sub(x, m) "
ROOT = "p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps) s = Sqrt(e) "

SPELLINGS = {
    "the usual one": HEAD + ROOT + "q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
    "the square a product": HEAD + "p = Mul(d, d) v = ReduceMean(p, last) e = Add(v, eps) s = Sqrt(e) q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
    "by the reciprocal": HEAD + ROOT + "r = Reciprocal(s) q = Mul(d, r) n = Mul(g, q) y = Add(b, n)",
    "by a division of one": HEAD + ROOT + "r = Div(one, s) q = Mul(d, r) n = Mul(g, q) y = Add(b, n)",
    "by a power": HEAD + "p = Pow(d, two) v = ReduceMean(p, last) e = Add(eps, v) s = Pow(e, minus) q = Mul(d, s) n = Mul(q, g) y = Add(n, b)",
    "the scale first": HEAD + ROOT + "gd = Mul(g, d) q = Div(gd, s) y = Add(q, b)",
    "by the mean of squares": HEAD + "xx = Mul(x, x) v0 = ReduceMean(xx, last) mm = Mul(m, m) v = Sub(v0, mm) e = Add(v, eps) s = Sqrt(e) q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
    "sums and a count": "t = ReduceSum(x, last) m = Div(t, count) d = Sub(x, m) p = Mul(d, d) u = ReduceSum(p, last) v = Div(u, count) e = Add(v, eps) s = Sqrt(e) q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
    "a scale with three axes": HEAD + ROOT + "q = Div(d, s) n = Mul(q, g3) y = Add(n, b)",
    "no shift": HEAD + ROOT + "q = Div(d, s) y = Mul(q, g)",
    "no scale": HEAD + ROOT + "q = Div(d, s) y = Add(q, b)",
    "the last axis by its number": "m = ReduceMean(x, second) d = Sub(x, m) p = Mul(d, d) v = ReduceMean(p, second) e = Add(v, eps) s = Sqrt(e) q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
}  # fmt: skip

OTHERS = {
    "another divisor": HEAD + "p = Mul(d, d) u = ReduceSum(p, last) v = Div(u, less) e = Add(v, eps) s = Sqrt(e) q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
    "epsilon outside of the root": HEAD + "p = Mul(d, d) v = ReduceMean(p, last) s = Sqrt(v) e = Add(s, eps) q = Div(d, e) n = Mul(q, g) y = Add(n, b)",
    "over another axis": "m = ReduceMean(x, middle) d = Sub(x, m) p = Mul(d, d) v = ReduceMean(p, middle) e = Add(v, eps) s = Sqrt(e) q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
    "not centered below": "m = ReduceMean(x, last) d = Sub(x, m) p = Mul(x, x) v = ReduceMean(p, last) e = Add(v, eps) s = Sqrt(e) q = Div(d, s) n = Mul(q, g) y = Add(n, b)",
    "a root alone": "p = Abs(x) y = Sqrt(p)",
}  # fmt: skip


def model_of(body: str):
    used = {name: value for name, value in NUMBERS.items() if re.search(rf"[(,]\s*{name}\s*[,)]", body)}
    return parsed(f"g (float[2, 3, 80] x) => (float[2, 3, 80] y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_becomes_one_operator(name):
    before = model_of(SPELLINGS[name])
    after, changed = rewritten(before, fuse_layer_norm)
    assert changed == 1
    assert kinds(after) == {"LayerNormalization": 1}
    assert_keeps(before, after, 2e-3 if name == "by the mean of squares" else 1e-5, x=X)


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_it_stays(name):
    assert_untouched(model_of(OTHERS[name]), fuse_layer_norm)


def test_the_form_without_a_mean():
    before = model_of(
        "p = Mul(x, x) v = ReduceMean(p, last) e = Add(v, eps) s = Sqrt(e) r = Reciprocal(s) q = Mul(x, r) y = Mul(q, g)"
    )
    draft = editable(before)
    assert fuse_layer_norm(draft) == 1
    assert fuse_layer_norm(draft) == 0
    after = ir.to_proto(draft)
    assert kinds(after) == {"SimplifiedLayerNormalization": 1}
    assert relative_error(outputs(after, {"x": X}), outputs(before, {"x": X})) < 1e-5


def test_half_precision_stays():
    body = SPELLINGS["the square a product"]
    model = parsed(
        f"g (float16[2, 3, 80] x) => (float16[2, 3, 80] y) {{ {body} }}",
        **{n: NUMBERS[n].astype(np.float16) for n in ("g", "b", "eps")}, last=NUMBERS["last"],
    )  # fmt: skip
    assert_untouched(model, fuse_layer_norm)


def test_a_whole_model():
    draft = editable(tiny_bert())
    spell_out(draft, usual=False)
    before = ir.to_proto(draft)
    after, changed = rewritten(before, fuse_layer_norm)
    assert changed == 2 * LAYERS + 1
    assert kinds(after) == kinds(tiny_bert())
    assert_keeps(before, after)


def test_a_clean_model_is_left_alone():
    assert_untouched(tiny_bert(), fuse_layer_norm)
