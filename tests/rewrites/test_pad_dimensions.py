# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import HIDDEN, cnn_feed, editable, tiny_bert, tiny_cnn
from rewriting import TIGHT, assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.pad_dimensions import missing, pad_dimensions

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 16)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 16, 8, 8)).astype(np.float32)
SHAPES = {
    "a": (16, 13), "b": (13, 16), "at": (13, 16), "bias": (13,), "last": (16,), "k": (13, 16, 3, 3), "l": (16, 13, 3, 3), "c3": (13, 1, 1), "wide": (16, 24), "tall": (24, 16),
    "one": (), "few": (16, 2), "row": (1, 13),
}  # fmt: skip
NUMBERS = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
NUMBERS["loud"] = NUMBERS["bias"] + 3
FREE = {
    "plain": "h = MatMul(x, a) y = MatMul(h, b)",
    "a bias and an activation": "h = MatMul(x, a) i = Add(h, bias) r = Relu(i) y = MatMul(r, b)",
    "a function that is not zero at zero": "h = MatMul(x, a) s = Sigmoid(h) y = MatMul(s, b)",
    "one is added": "h = MatMul(x, a) s = Add(h, one) y = MatMul(s, b)",
    "scaled by a vector": "h = MatMul(x, a) s = Mul(h, loud) y = MatMul(s, b)",
}
"""Pairs that take more channels without a copy."""
COPIED = {
    "channels divided by a vector: 0/0 is no number": (
        "h = MatMul(x, a) s = Div(h, loud) y = MatMul(s, b)",
        {"Slice": 1, "Pad": 1},
    ),
    "two read it": ("h = MatMul(x, a) m = MatMul(h, b) n = ReduceMax(h) y = Add(m, n)", {"Slice": 1, "Pad": 1}),
    "normalized over the channels": ("h = MatMul(x, a) s = Softmax(h) y = MatMul(s, b)", {"Slice": 1, "Pad": 1}),
}
"""Where the channels in between have to stay as many as they are."""


def graph(body: str, given: str = "float[2, m, 16] x", made: str = "float[2, m, n] y") -> onnx.ModelProto:
    used = {name: array for name, array in NUMBERS.items() if re.search(rf"\b{name}\b", body)}
    return parsed(f"g ({given}) => ({made}) {{ {body} }}", **used)


def sizes(model: onnx.ModelProto) -> list[int]:
    """Sizes of the constant matrices and kernels; of kernels, only their channels."""
    return [size for tensor in model.graph.initializer if len(tensor.dims) > 1 for size in tensor.dims[:2] if size > 1]


@pytest.mark.parametrize("body", FREE.values(), ids=FREE)
def test_channels_between_two_products_are_filled_up_in_both(body):
    before = graph(body)
    after, grown = rewritten(before, pad_dimensions)
    assert grown == 1
    assert {*sizes(after)} == {16}
    assert kinds(after) == kinds(before), "not one operator more"
    assert relative_error(outputs(after, {"x": X}), outputs(before, {"x": X})) <= TIGHT


@pytest.mark.parametrize(("body", "copies"), COPIED.values(), ids=COPIED)
def test_elsewhere_the_result_is_cut_and_the_input_filled_up(body, copies):
    before = graph(body)
    after, grown = rewritten(before, pad_dimensions)
    assert grown == 2
    assert {*sizes(after)} == {16}
    assert kinds(after) == kinds(before) + copies_of(copies)
    assert relative_error(outputs(after, {"x": X}), outputs(before, {"x": X})) <= TIGHT


def copies_of(copies: dict[str, int]):
    return type(kinds(graph("y = Relu(x)")))(copies)


def test_a_last_product_keeps_its_name_and_its_columns():
    after, grown = rewritten(graph("y = MatMul(x, a)"), pad_dimensions)
    assert grown == 1
    assert outputs(after, {"x": X})[0].shape == (2, 3, 13)
    np.testing.assert_allclose(outputs(after, {"x": X})[0], X @ NUMBERS["a"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    ["y = Gemm(x, a, bias)", "y = Gemm<transB = 1>(x, at, bias)", "y = Gemm<transB = 1>(x, at, one)", "y = Gemm(x, a)", "y = Gemm<alpha = 0.5, beta = 2.0>(x, a, row)"],
)  # fmt: skip
def test_a_gemm_is_filled_up_with_its_bias(body):
    before = graph(body, "float[m, 16] x", "float[m, 13] y")
    after, grown = rewritten(before, pad_dimensions)
    assert grown == 1
    assert {*sizes(after)} == {16}
    assert relative_error(outputs(after, {"x": X[0]}), outputs(before, {"x": X[0]})) <= TIGHT


def test_convolutions_get_more_channels_in_between():
    body = (
        "h = Conv<pads = [1, 1, 1, 1]>(x, k, bias) i = Add(h, c3) r = Relu(i) y = Conv<pads = [1, 1, 1, 1]>(r, l, last)"
    )
    before = graph(body, "float[n, 16, 8, 8] x", "float[n, 16, 8, 8] y")
    after, grown = rewritten(before, pad_dimensions)
    assert grown == 1
    assert {*sizes(after)} == {16}
    assert relative_error(outputs(after, {"x": IMAGE}), outputs(before, {"x": IMAGE})) <= TIGHT


UNTOUCHED = {
    "multiples": graph("h = MatMul(x, wide) y = MatMul(h, tall)"),
    "two classes": graph("y = MatMul(x, few)"),
    "a bias that is computed": graph(
        "t = ReduceMax<keepdims = 0>(x) y = Gemm(x, a, t)", "float[m, 16] x", "float[m, 13] y"
    ),
}


@pytest.mark.parametrize("model", UNTOUCHED.values(), ids=UNTOUCHED)
def test_is_left_alone(model):
    assert_untouched(model, pad_dimensions)


def test_an_old_opset_is_left_alone():
    model = graph("y = MatMul(x, a)")
    model.opset_import[0].version = 9
    assert_untouched(model, pad_dimensions)


def test_models_of_aligned_sizes_are_left_alone():
    assert HIDDEN % 8 == 0
    assert_untouched(tiny_bert(), pad_dimensions)


def test_a_network_stays_what_it_was():
    before = tiny_cnn()  # 10 classes
    after, grown = rewritten(before, pad_dimensions)
    assert grown == 1
    assert_keeps(before, after, **cnn_feed(2))


def test_a_network_between_other_multiples_gets_its_channels_filled_up():
    before, draft = tiny_cnn(), editable(tiny_cnn())  # 16 channels, then 32; the depthwise kernel is left alone
    assert pad_dimensions(draft, 12) == 2, "one pair, and what the classifier reads"
    after = ir.to_proto(draft)
    assert {tuple(t.dims) for t in after.graph.initializer if len(t.dims) == 4} >= {(24, 3, 3, 3), (32, 24, 3, 3)}
    assert_keeps(before, after, **cnn_feed(2))


def test_what_is_missing_to_a_multiple():
    assert [missing(size, 8) for size in (1, 7, 8, 9, 50257, 50264)] == [0, 0, 0, 7, 7, 0]
