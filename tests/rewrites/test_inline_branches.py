# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, parsed, rewritten
from unlag.rewrites.inline_branches import inline_branches
from zoo.control_flow import twin

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
BRANCHES = "<then_branch = a () => (float[n, 4] t) { q = Neg(r) t = Exp(q) }, else_branch = b () => (float[n, 4] u) { u = Abs(r) }>"

CONSTANT = {
    "a constant": ("y = If(yes) {}", {"Relu": 1, "Neg": 1, "Exp": 1}),
    "the other branch": ("y = If(no) {}", {"Relu": 1, "Abs": 1}),
    "a known size": ("s = Shape(x) d = Gather(s, last) c = Equal(d, four) y = If(c) {}", {"Relu": 1, "Neg": 1, "Exp": 1}),
    "a known size, by bounds": ("s = Shape<start = 1, end = 2>(x) c = Equal(s, four) y = If(c) {}", {"Relu": 1, "Neg": 1, "Exp": 1}),
    "the rank": ("s = Shape(x) d = Size(s) c = Equal(d, four) y = If(c) {}", {"Relu": 1, "Abs": 1}),
    "not": ("c = Not(yes) y = If(c) {}", {"Relu": 1, "Abs": 1}),
    "two on one condition": ("z = If(yes) {} y = Add(z, r)", {"Relu": 1, "Neg": 1, "Exp": 1, "Add": 1}),
}  # fmt: skip
KEPT = {
    "a size that is not known": "s = Shape(x) d = Gather(s, first) c = Equal(d, four) y = If(c) {}",
    "an input's value": "m = ReduceMax<keepdims = 0>(x) c = Greater(m, level) y = If(c) {}",
}
NUMBERS = {"yes": np.array([1], bool).reshape(()), "no": np.array([0], bool).reshape(()), "last": np.array(1), "first": np.array(0), "four": np.array(4), "level": np.float32(0)}  # fmt: skip


def model_of(body: str) -> onnx.ModelProto:
    used = {name: value for name, value in NUMBERS.items() if f" {name})" in body or f"({name})" in body}
    return parsed(f"g (float[n, 4] x) => (float[n, 4] y) {{ r = Relu(x) {body.replace('{}', BRANCHES)} }}", **used)


@pytest.mark.parametrize("name", CONSTANT)
def test_the_branch_that_is_taken_stays(name):
    body, left = CONSTANT[name]
    before = model_of(body)
    after, changed = rewritten(before, inline_branches)
    assert changed == 1
    assert kinds(after) == left
    assert_keeps(before, after, 0.0, x=X)


@pytest.mark.parametrize("name", KEPT)
def test_what_depends_on_the_run_stays(name):
    assert_untouched(model_of(KEPT[name]), inline_branches)


def test_a_condition_that_a_caller_may_override_stays():
    model = model_of("y = If(yes) {}")
    model.graph.input.append(onnx.helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    assert_untouched(model, inline_branches)


def test_a_branch_that_only_hands_on_a_value():
    text = "g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) { y, z = If(yes) <then_branch = a () => (float[n, 4] t, float[n, 4] w) { t = Identity(x) w = Neg(x) }, else_branch = b () => (float[n, 4] u, float[n, 4] v) { u = Abs(x) v = Abs(x) }> }"
    before = parsed(text, yes=NUMBERS["yes"])
    after, changed = rewritten(before, inline_branches)
    assert changed == 1
    assert_keeps(before, after, 0.0, x=X)


def test_branches_inside_of_branches():
    inner = (
        BRANCHES.replace("float[n, 4] t", "float[n, 4] t2")
        .replace("t = Exp", "t2 = Exp")
        .replace("= a ", "= c ")
        .replace("= b ", "= d ")
    )
    text = f"g (float[n, 4] x) => (float[n, 4] y) {{ r = Relu(x) y = If(yes) <then_branch = a () => (float[n, 4] t) {{ t = If(no) {inner} }}, else_branch = b () => (float[n, 4] e) {{ e = Exp(r) }}> }}"
    before = parsed(text, yes=NUMBERS["yes"], no=NUMBERS["no"])
    after, changed = rewritten(before, inline_branches)
    assert changed == 2
    assert kinds(after) == {"Relu": 1, "Abs": 1}
    assert_keeps(before, after, 0.0, x=X)


def test_constants_of_a_branch_come_along():
    before = model_of("y = If(yes) {}")
    branch = before.graph.node[1].attribute[0].g
    branch.initializer.append(onnx.numpy_helper.from_array(np.full(4, 2, np.float32), "held"))
    branch.node.append(onnx.helper.make_node("Mul", ["t", "held"], ["doubled"]))
    branch.output[0].name = "doubled"
    after, changed = rewritten(before, inline_branches)
    assert changed == 1
    assert_keeps(before, after, 0.0, x=X)


def test_a_whole_model():
    before = twin().variant
    after, changed = rewritten(before, inline_branches)
    assert changed == 2
    assert kinds(after) == kinds(tiny_bert())
    assert_keeps(before, after, 0.0)
