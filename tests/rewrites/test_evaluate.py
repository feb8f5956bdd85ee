# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planting import editable
from rewriting import outputs, parsed
from unlag.model.facts import GraphIndex, facts_of
from unlag.rewrites.evaluate import Evaluator

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7

BODIES = {
    "shapes": "s = Shape<start = 1>(x) k = Constant<value_ints = [2]>() t = Concat<axis = 0>(k, s) y = Reshape(x, t)",
    "slice to the end": "a = Constant<value_ints = [1]>() b = Constant<value_ints = [9223372036854775807]>() y = Slice(x, a, b, a)",
    "slice from the start": "a = Constant<value_ints = [-9223372036854775808]>() b = Constant<value_ints = [-1]>() y = Slice(x, a, b, b)",
    "split": "a, b = Split<axis = -1, num_outputs = 2>(x) y = Sub(a, b)",
    "gather": "k = Constant<value_ints = [2, 0]>() y = Gather<axis = 1>(x, k)",
    "unsqueeze and squeeze": "a = Constant<value_ints = [0, 2]>() u = Unsqueeze(x, a) y = Squeeze(u, a)",
    "compare and choose": "z = Constant<value_float = 0.0>() p = Greater(x, z) n = Neg(x) y = Where(p, x, n)",
    "expand": "k = Constant<value_ints = [5, 1, 1, 1]>() y = Expand(x, k)",
    "zero copies a dimension": "k = Constant<value_ints = [0, -1]>() y = Reshape(x, k)",
    "arithmetic": "a = Constant<value_float = 3.0>() b = Add(x, a) c = Mul(b, b) d = Sqrt(c) e = Div(d, a) f = Max(e, x) y = Min(f, a)",
    "casts": "i = Cast<to = 7>(x) k = Constant<value_int = 2>() d = Mul(i, k) y = Cast<to = 1>(d)",
    "logic": "z = Constant<value_float = 0.0>() p = Less(x, z) q = GreaterOrEqual(x, z) r = Or(p, q) s = And(r, p) t = Not(s) y = Cast<to = 1>(t)",
    "range": "a = Constant<value_int = 0>() b = Constant<value_int = 4>() c = Constant<value_int = 1>() r = Range(a, b, c) f = Cast<to = 1>(r) y = Add(x, f)",
    "gathernd": "k = Constant<value = int64[1, 2] {1, 2}>() y = GatherND(x, k)",
    "turned": "y = Transpose<perm = [2, 0, 1]>(x)",
    "curves": "a = Erf(x) b = Tanh(x) y = Add(a, b)",
}  # fmt: skip


def evaluator_of(body: str) -> tuple[Evaluator, object]:
    model = parsed(f"g (float[2, 3, 4] x) => (float y) {{ {body} }}")
    return Evaluator(GraphIndex(facts_of(editable(model))), {"x": X}), model


@pytest.mark.parametrize("name", BODIES)
def test_agrees_with_the_runtime(name):
    evaluator, model = evaluator_of(BODIES[name])
    value = evaluator.value("y")
    truth = outputs(model, {"x": X})[0]
    assert value is not None
    assert value.shape == truth.shape
    assert np.abs(value - truth).max() < 1e-5


def test_an_unknown_operator_or_input_gives_nothing():
    evaluator, _model = evaluator_of("y = Selu(x)")
    assert evaluator.value("y") is None
    assert evaluator.value("nowhere") is None


def test_shapes_that_do_not_fit_give_nothing():
    evaluator, _model = evaluator_of("k = Constant<value_ints = [5]>() y = Reshape(x, k)")
    assert evaluator.value("y") is None


@settings(max_examples=30, deadline=None)
@given(st.permutations([0, 1, 2]), st.permutations([0, 1, 2]))
def test_transposes_compose(first, second):
    body = f"a = Transpose<perm = [{', '.join(map(str, first))}]>(x) y = Transpose<perm = [{', '.join(map(str, second))}]>(a)"
    evaluator, model = evaluator_of(body)
    assert np.array_equal(evaluator.value("y"), outputs(model, {"x": X})[0])
