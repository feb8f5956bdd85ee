# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from planting import editable, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, parsed, rewritten
from unlag.rewrites.remove_casts import remove_casts
from zoo.cast_chains import infect

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)

REMOVED = {
    "to its own type": ("a = Cast<to = 1>(x) y = Relu(a)", {"Relu": 1}),
    "wide and back": ("a = Cast<to = 11>(x) b = Cast<to = 1>(a) y = Relu(b)", {"Relu": 1}),
    "a reshape in between": ("a = Cast<to = 11>(x) r = Reshape(a, s) b = Cast<to = 1>(r) y = Relu(b)", {"Reshape": 1, "Relu": 1}),
    "two moves in between": ("a = Cast<to = 11>(x) t = Transpose<perm = [0, 2, 1]>(a) r = Reshape(t, s) b = Cast<to = 1>(r) y = Relu(b)", {"Reshape": 1, "Transpose": 1, "Relu": 1}),
    "up to the output": ("r = Relu(x) a = Cast<to = 11>(r) m = Reshape(a, s) y = Cast<to = 1>(m)", {"Relu": 1, "Reshape": 1}),
    "pairs inside of pairs": ("a = Cast<to = 11>(x) b = Cast<to = 1>(a) c = Cast<to = 11>(b) d = Cast<to = 1>(c) y = Relu(d)", {"Relu": 1}),
    "two narrow readers": ("a = Cast<to = 11>(x) b = Cast<to = 1>(a) c = Cast<to = 1>(a) y = Add(b, c)", {"Add": 1}),
    "a half made twice as wide": ("h = Cast<to = 10>(x) a = Cast<to = 1>(h) b = Cast<to = 11>(a) y = Cast<to = 1>(b)", {"Cast": 2}),
}  # fmt: skip

KEPT = {
    "half in between": "a = Cast<to = 10>(x) b = Cast<to = 1>(a) y = Relu(b)",
    "whole numbers in between": "a = Cast<to = 6>(x) b = Cast<to = 1>(a) y = Relu(b)",
    "something computed in between": "a = Cast<to = 11>(x) r = Exp(a) b = Cast<to = 1>(r) y = Relu(b)",
    "the moved values are read wide too": "a = Cast<to = 11>(x) r = Reshape(a, s) b = Cast<to = 1>(r) e = Exp(r) f = Cast<to = 1>(e) y = Add(b, f)",
}
SHAPE = {"s": np.array([6, 4])}


def model_of(body: str):
    used = SHAPE if ", s)" in body else {}
    return parsed(f"g (float[2, 3, 4] x) => (float y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", REMOVED)
def test_casts_go_and_values_stay(name):
    body, left = REMOVED[name]
    before = model_of(body)
    after, changed = rewritten(before, remove_casts)
    assert changed > 0
    assert kinds(after) == left
    assert_keeps(before, after, 0.0, x=X)


@pytest.mark.parametrize("name", KEPT)
def test_what_changes_values_stays(name):
    assert_untouched(model_of(KEPT[name]), remove_casts)


def test_a_whole_model_gets_its_casts_back_out():
    draft = editable(tiny_bert())
    infect(draft)
    before = ir.to_proto(draft)
    after, changed = rewritten(before, remove_casts)
    assert changed > 0
    assert kinds(after) == kinds(tiny_bert())
    assert_keeps(before, after, 0.0)


def test_a_clean_model_is_left_alone():
    assert_untouched(tiny_bert(), remove_casts)
