# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import LAYERS, flash, tiny_bert, tiny_feed
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.fuse_skip_layer_norm import fuse_skip_layer_norm

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(8, 8)).astype(np.float32)
ROW = RNG.normal(size=8).astype(np.float32)
X = RNG.normal(size=(2, 3, 8)).astype(np.float32)


def test_both_residuals_of_each_layer_are_fused():
    before = tiny_bert()
    after, changed = rewritten(before, fuse_skip_layer_norm)
    assert changed == 2 * LAYERS
    assert kinds(after)["LayerNormalization"] == 1, "the embeddings' stays: positions are broadcast over the batch"
    assert_keeps(before, after)


def test_a_lost_bias_would_be_noticed():
    before = tiny_bert()
    after, _changed = rewritten(before, fuse_skip_layer_norm)
    node = next(n for n in after.graph.node if n.op_type == "SkipLayerNormalization")
    del node.input[4]
    assert relative_error(outputs(after, tiny_feed()), outputs(before, tiny_feed())) > 1e-3


def test_a_sum_that_goes_on_comes_from_the_fused_operator():
    text = """g (float[a, b, 8] x) => (float[a, b, 8] y) {
        n = LayerNormalization(x, s, t) p = MatMul(n, w) r = Add(p, n) m = LayerNormalization(r, s, t) y = Add(m, r) }"""
    before = parsed(text, w=WEIGHT, s=ROW, t=ROW)
    after, changed = rewritten(before, fuse_skip_layer_norm)
    assert changed == 1
    assert_keeps(before, after, x=X)


def test_a_sum_that_is_broadcast_stays():
    text = "g (float[a, b, 8] x, float[b, 8] k) => (float[a, b, 8] y) { p = MatMul(x, w) r = Add(p, k) y = LayerNormalization(r, s, t) }"
    assert_untouched(parsed(text, w=WEIGHT, s=ROW, t=ROW), fuse_skip_layer_norm)


def test_a_sum_that_is_an_output_stays():
    text = """g (float[a, b, 8] x) => (float[a, b, 8] y, float[a, b, 8] r) {
        n = LayerNormalization(x, s, t) p = MatMul(n, w) r = Add(p, n) y = LayerNormalization(r, s, t) }"""
    assert_untouched(parsed(text, w=WEIGHT, s=ROW, t=ROW), fuse_skip_layer_norm)


def test_products_in_half_precision_are_fused_behind_their_cast():
    before = flash(fp16_activations=True)
    after, changed = rewritten(before, fuse_skip_layer_norm)
    assert changed == 2 * LAYERS
    assert_keeps(before, after, 1e-3)


def test_residuals_in_half_precision_stay():
    text = """g (float16[a, b, 8] x) => (float16[a, b, 8] y) {
        n = LayerNormalization(x, s, t) p = MatMul(n, w) r = Add(p, n) y = LayerNormalization(r, s, t) }"""
    half = {name: array.astype(np.float16) for name, array in (("w", WEIGHT), ("s", ROW), ("t", ROW))}
    assert_untouched(parsed(text, **half), fuse_skip_layer_norm)


def test_epsilon_goes_along():
    after, _changed = rewritten(tiny_bert(), fuse_skip_layer_norm)
    values = [
        onnx.helper.get_attribute_value(a)
        for n in after.graph.node
        if n.op_type == "SkipLayerNormalization"
        for a in n.attribute
        if a.name == "epsilon"
    ]
    assert values == pytest.approx([1e-12] * 2 * LAYERS, rel=1e-6, abs=0)
