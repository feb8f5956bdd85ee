# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import LAYERS, editable, tiny_bert, tiny_feed
from rewriting import assert_untouched, outputs, parsed, relative_error, rewritten
from unlag.model.facts import facts_of
from unlag.rewrites.activation_units import find_units, restore_activation
from zoo.different_activation import plant, twin

X = np.linspace(-6, 6, 64, dtype=np.float32).reshape(4, 16)
NUMBERS = {
    "root": 2**0.5, "one": 1, "half": 0.5, "three": 3, "six": 6, "zero": 0, "quick": 1.702, "small": 0.044715, "factor": (2 / np.pi) ** 0.5,
}  # fmt: skip
SPELLINGS = {
    "Relu": "y = Relu(x)",
    "Gelu": "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(half, c) y = Mul(x, d)",
    "Gelu by tanh": "p = Pow(x, three) q = Mul(small, p) r = Add(x, q) s = Mul(factor, r) t = Tanh(s) u = Add(one, t) v = Mul(x, u) y = Mul(half, v)",
    "QuickGelu": "a = Mul(x, quick) b = Sigmoid(a) y = Mul(x, b)",
    "SiLU": "b = Sigmoid(x) y = Mul(b, x)",
    "HardSwish": "a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)",
    "Relu6": "y = Clip(x, zero, six)",
    "Mish": "a = Softplus(x) b = Tanh(a) y = Mul(x, b)",
    "Softplus": "y = Softplus(x)",
}  # fmt: skip


def model_of(body: str) -> onnx.ModelProto:
    used = {n: np.float32(v) for n, v in NUMBERS.items() if f" {n})" in body or f"({n}," in body or f", {n}," in body}
    return parsed(f"g (float[4, 16] x) => (float[4, 16] y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", SPELLINGS)
def test_functions_are_told_by_their_values(name):
    assert [unit.function for unit in find_units(facts_of(editable(model_of(SPELLINGS[name]))))] == [name]


@pytest.mark.parametrize("body", ["y = Sigmoid(x)", "y = Tanh(x)", "a = Erf(x) y = Mul(a, half)"])
def test_gates_alone_are_no_activations(body):
    assert find_units(facts_of(editable(model_of(body)))) == []


@pytest.mark.parametrize("name", sorted(set(SPELLINGS) - {"Relu6", "Relu"}))
def test_the_standards_function_comes_back(name):
    standard, variant = model_of(SPELLINGS[name]), model_of("y = Relu(x)")
    after, changed = rewritten(variant, lambda model: restore_activation(model, editable(standard)))
    assert changed == 1
    assert relative_error(outputs(after, {"x": X}), outputs(standard, {"x": X})) < 1e-5


def test_other_numbers_of_activations_can_not_be_matched():
    standard = model_of("a = Relu(x) b = Neg(a) y = Relu(b)")
    assert_untouched(model_of(SPELLINGS["Gelu"]), lambda model: restore_activation(model, editable(standard)))


def test_branches_in_another_order_are_the_same():
    one, other = "a = Relu(x) b = Softplus(x) y = Sub(a, b)", "b = Softplus(x) a = Relu(x) y = Sub(a, b)"
    assert_untouched(model_of(one), lambda model: restore_activation(model, editable(model_of(other))))


def test_a_whole_model():
    after, changed = rewritten(plant().variant, lambda model: restore_activation(model, editable(tiny_bert())))
    assert changed == LAYERS
    assert relative_error(outputs(after, tiny_feed()), outputs(tiny_bert(), tiny_feed())) < 1e-5


def test_another_spelling_stays():
    assert_untouched(twin().variant, lambda model: restore_activation(model, editable(tiny_bert())))
