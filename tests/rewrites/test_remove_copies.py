# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import pytest

from planting import flash, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, parsed, rewritten
from unlag.rewrites.remove_copies import remove_copies

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)

REMOVED = {
    "inverse transposes": ("a = Transpose<perm = [0, 2, 1]>(x) b = Transpose<perm = [0, 2, 1]>(a) y = Relu(b)", {"Relu": 1}),
    "across an identity": ("a = Transpose<perm = [1, 2, 0]>(x) i = Identity(a) b = Transpose<perm = [2, 0, 1]>(i) y = Relu(b)", {"Relu": 1}),
    "a transpose that keeps the order": ("a = Transpose<perm = [0, 1, 2]>(x) y = Relu(a)", {"Relu": 1}),
    "two transposes to one": ("a = Transpose<perm = [1, 0, 2]>(x) b = Transpose<perm = [0, 2, 1]>(a) y = Relu(b)", {"Transpose": 1, "Relu": 1}),
    "reshape of a reshape": ("a = Reshape(x, s) b = Reshape(a, t) y = Relu(b)", {"Reshape": 1, "Relu": 1}),
    "pairs inside of pairs": ("a = Transpose<perm = [0, 2, 1]>(x) b = Transpose<perm = [1, 0, 2]>(a) i = Identity(b) c = Transpose<perm = [1, 0, 2]>(i) d = Transpose<perm = [0, 2, 1]>(c) y = Relu(d)", {"Relu": 1}),
    "up to the output": ("r = Relu(x) a = Transpose<perm = [0, 2, 1]>(r) y = Transpose<perm = [0, 2, 1]>(a)", {"Relu": 1}),
}  # fmt: skip

KEPT = {
    "casts": "a = Cast<to = 11>(x) y = Cast<to = 1>(a)",
    "a reshape that copies a dimension": "a = Reshape(x, s) b = Reshape(a, z) y = Relu(b)",
    "an input renamed to an output": "y = Identity(x)",
    "something in between": "a = Transpose<perm = [0, 2, 1]>(x) r = Relu(a) y = Transpose<perm = [0, 2, 1]>(r)",
    "a reversed axis": "a = Transpose(x) y = Relu(a)",
}
SHAPES = {"s": np.array([6, 4]), "t": np.array([4, -1]), "z": np.array([0, 2, 2])}


def model_of(body: str):
    used = {name: shape for name, shape in SHAPES.items() if f", {name})" in body}
    return parsed(f"g (float[2, 3, 4] x) => (float y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", REMOVED)
def test_copies_go_and_values_stay(name):
    body, left = REMOVED[name]
    before = model_of(body)
    after, changed = rewritten(before, remove_copies)
    assert changed > 0
    assert kinds(after) == left
    assert_keeps(before, after, 0.0, x=X)


@pytest.mark.parametrize("name", KEPT)
def test_what_changes_values_or_names_stays(name):
    assert_untouched(model_of(KEPT[name]), remove_copies)


def test_a_first_transpose_that_others_read_stays_for_them():
    text = "g (float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 4, 3] z) { a = Transpose<perm = [0, 2, 1]>(x) b = Transpose<perm = [0, 2, 1]>(a) y = Relu(b) z = Neg(a) }"
    before = parsed(text)
    after, changed = rewritten(before, remove_copies)
    assert changed == 1
    assert kinds(after) == {"Relu": 1, "Transpose": 1, "Neg": 1}
    assert_keeps(before, after, 0.0, x=X)


def test_a_whole_model_gets_its_copies_back_out():
    before = flash(extra_copies=True)
    after, changed = rewritten(before, remove_copies)
    assert changed == 8
    assert kinds(after) == kinds(tiny_bert())
    assert_keeps(before, after, 0.0)


def test_a_clean_model_is_left_alone():
    assert_untouched(tiny_bert(), remove_copies)
