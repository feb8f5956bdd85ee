from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import editable, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.respell_operators import EXPONENTS, respell_operators
from zoo.slow_operator import infect

RNG = np.random.default_rng(0)


def _drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


EINSUMS = {
    "bij,jk->bik": ((2, 3, 4), _drawn(4, 5)),
    "bij,kj->bik": ((2, 3, 4), _drawn(5, 4)),
    "ij,jk->ki": ((3, 4), _drawn(4, 5)),
    "jk,bij->bik": ((4, 5), _drawn(2, 3, 4)),
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bihd,bjhd->bhij": ((2, 4, 3, 5), (2, 6, 3, 5)),
    "bhij,bjhd->bihd": ((2, 3, 4, 6), (2, 6, 3, 5)),
    "bsd,dhe->bshe": ((2, 3, 4), _drawn(4, 2, 5)),
    "bshe,hed->bsd": ((2, 3, 2, 5), _drawn(2, 5, 4)),
    "bsd,dhe->bhse": ((2, 3, 4), _drawn(4, 2, 5)),
    "bij,bjk -> bik": ((2, 3, 4), _drawn(2, 4, 5)),
}
OTHERS = {
    "bij->bji": ((2, 3, 4), None),
    "bij,bij->bij": ((2, 3, 4), (2, 3, 4)),
    "bij,jk->ik": ((2, 3, 4), (4, 5)),
    "bii,ik->bk": ((2, 3, 3), (3, 5)),
    "...ij,jk->...ik": ((2, 3, 4), (4, 5)),
    "bsd,dhe->bshe": ((2, 3, 4), (4, 2, 5)),
    "bij,bj->bi": ((2, 3, 4), (2, 4)),
}


def einsum(equation: str, left: tuple[int, ...], right) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    text = "float[{}] x".format(", ".join(map(str, left)))
    feed, constants = {"x": _drawn(*left)}, {}
    if isinstance(right, tuple):
        text += ", float[{}] z".format(", ".join(map(str, right)))
        feed["z"] = _drawn(*right)
    elif right is not None:
        constants["z"] = right
    operands = "x" if right is None else "x, z"
    model = parsed(f'g ({text}) => (float y) {{ y = Einsum<equation = "{equation}">({operands}) }}', **constants)
    return model, feed


@pytest.mark.parametrize("equation", EINSUMS)
def test_an_einsum_becomes_a_matrix_product(equation):
    before, feed = einsum(equation, *EINSUMS[equation])
    after, changed = rewritten(before, respell_operators)
    assert changed == 1
    assert kinds(after)["MatMul"] == 1
    assert kinds(after)["Einsum"] == 0
    assert_keeps(before, after, **feed)


@pytest.mark.parametrize("equation", OTHERS)
def test_what_is_no_product_stays(equation):
    assert_untouched(einsum(equation, *OTHERS[equation])[0], respell_operators)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers(exponent):
    x = RNG.uniform(0.1, 4, (3, 5)).astype(np.float32)
    before = parsed(
        "g (float[3, 5] x) => (float[3, 5] y) { a = Neg(x) b = Abs(a) y = Pow(b, e) }", e=np.float32(exponent)
    )
    after, changed = rewritten(before, respell_operators)
    assert changed == 1
    assert kinds(after)["Pow"] == 0
    assert relative_error(outputs(after, {"x": x}), outputs(before, {"x": x})) < 1e-6


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.7])
def test_other_powers_stay(exponent):
    model = parsed("g (float[3, 5] x) => (float[3, 5] y) { y = Pow(x, e) }", e=np.float32(exponent))
    assert_untouched(model, respell_operators)


SIGMOIDS = {
    "divided": "n = Neg(x) e = Exp(n) a = Add(e, one) y = Div(one, a)",
    "the reciprocal": "n = Neg(x) e = Exp(n) a = Add(one, e) y = Reciprocal(a)",
}
NO_SIGMOIDS = {
    "another number": "n = Neg(x) e = Exp(n) a = Add(e, two) y = Div(one, a)",
    "not negated": "e = Exp(x) a = Add(e, one) y = Div(one, a)",
    "read elsewhere too": "n = Neg(x) e = Exp(n) a = Add(e, one) b = Div(one, a) y = Add(b, e)",
}


def written_out(body: str) -> onnx.ModelProto:
    numbers = {"one": np.float32(1), "two": np.float32(2)}
    used = {name: value for name, value in numbers.items() if re.search(rf"[(,]\s*{name}\s*[,)]", body)}
    return parsed(f"g (float[3, 5] x) => (float[3, 5] y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", SIGMOIDS)
def test_a_sigmoid_becomes_one_operator(name):
    before = written_out(SIGMOIDS[name])
    after, changed = rewritten(before, respell_operators)
    assert changed == 1
    assert kinds(after) == {"Sigmoid": 1}
    assert_keeps(before, after, 1e-6, x=_drawn(3, 5))


@pytest.mark.parametrize("name", NO_SIGMOIDS)
def test_what_only_looks_like_a_sigmoid_stays(name):
    assert_untouched(written_out(NO_SIGMOIDS[name]), respell_operators)


def test_a_whole_model():
    draft = editable(tiny_bert())
    count = infect(draft)
    before = ir.to_proto(draft)
    after, changed = rewritten(before, respell_operators)
    assert changed == count > 0
    assert kinds(after) == kinds(tiny_bert())
    assert_keeps(before, after)


def test_a_clean_model_is_left_alone():
    assert_untouched(tiny_bert(), respell_operators)
