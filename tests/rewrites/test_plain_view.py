# ruff: noqa: E501 - a graph in text form reads best in one line
"""The plain view: what codes and fused operators stand for, and attention that is found behind them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import editable
from rewriting import TIGHT, assert_untouched, kinds, outputs, relative_error, rewritten
from unlag.model.facts import GraphIndex, facts_of
from unlag.rewrites.evaluate import Evaluator
from unlag.rewrites.fuse_heads import fuse_heads
from unlag.rewrites.plain_view import code_values, plain_view

RNG = np.random.default_rng(0)
WIDTH, HEADS = 16, 4
SCALES = "<float s = {0.5}, uint8 z = {128}, float third = {0.25}>"


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(text: str, opset: int = 23, **constants: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>\n{text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


def viewed(body: str, **constants: np.ndarray) -> GraphIndex:
    text = f"g (float[2, 3, 4] x, float[2, 4, 3] w) => (float[2, 3, 3] y) {SCALES} {{ {body} }}"
    return GraphIndex(plain_view(facts_of(editable(model_of(text, 21, **constants)))))


def back_to(index: GraphIndex, name: str) -> list[str]:
    """Operators from a value back along first inputs."""
    found = []
    while (node := index.producer(name)) is not None:
        found.append(node.op_type)
        name = node.inputs[0]
    return found


PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"


def test_a_pair_around_an_activation_does_nothing():
    index = viewed(f"{PAIR} y = MatMul(d, w)")
    assert back_to(index, "y") == ["MatMul", "Identity", "Identity"]
    value = Evaluator(index, {"x": np.arange(24.0).reshape(2, 3, 4)}).value("d")
    assert value is not None
    assert value.flat[5] == 5


def test_codes_are_known_for_what_they_are():
    text = f"g (float[2, 3, 4] x) => (float[2, 4, 3] y) {SCALES} {{ q = QuantizeLinear(x, s, z) t = Transpose <perm = [0, 2, 1]> (q) y = DequantizeLinear(t, s, z) }}"
    assert code_values(facts_of(editable(model_of(text, 21)))) == {"q", "t"}


def test_a_number_in_codes_is_the_number_that_it_means():
    index = viewed("c = DequantizeLinear(code, s, z) y = Mul(x, c)", code=np.array(132, np.uint8))
    assert index.scalar("c") == 2.0


def test_a_weight_in_codes_stays_what_it_is():
    index = viewed("d = DequantizeLinear(codes, s, z) y = MatMul(x, d)", codes=np.full((4, 3), 130, np.uint8))
    node = index.producer("d")
    assert node is not None
    assert node.op_type == "DequantizeLinear"


@pytest.mark.parametrize(
    "scaling", ["f = Mul(sx, sw) y = Mul(c, f)", "a = Mul(c, sx) y = Mul(a, third)", "f = Mul(third, sx) y = Mul(f, c)"]
)
def test_an_integer_product_is_a_product(scaling):
    quantized = "xq, sx, zx = DynamicQuantizeLinear(x) wq, sw, zw = DynamicQuantizeLinear(w)"
    index = viewed(f"{quantized} m = MatMulInteger(xq, wq, zx, zw) c = Cast <to = 1> (m) {scaling}")
    assert set(back_to(index, "y")) == {"MatMul", "Identity"}


def test_another_product_behind_an_integer_one_stays():
    quantized = "xq, sx, zx = DynamicQuantizeLinear(x) wq, sw, zw = DynamicQuantizeLinear(w)"
    index = viewed(f"{quantized} m = MatMulInteger(xq, wq, zx, zw) c = Cast <to = 1> (m) y = Mul(c, third)")
    assert back_to(index, "y")[0] == "Mul"


PROJECTED = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)"
ATTENTIONS = {
    "three axes": f"{PROJECTED} y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v)",
    "causal": f"{PROJECTED} y = Attention <q_num_heads = 4, kv_num_heads = 4, is_causal = 1> (q, k, v)",
    "another scale": f"{PROJECTED} y = Attention <q_num_heads = 4, kv_num_heads = 4, scale = 0.1> (q, k, v)",
    "a mask of numbers": f"{PROJECTED} y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, added)",
    "padding": f"{PROJECTED} keep = Cast <to = 9> (mask) far = Unsqueeze(keep, middle) sizes = Shape <start = 1> (mask) both = Concat <axis = 0> (one, one, sizes, sizes) wide = Expand(far, both) y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, wide)",
}  # fmt: skip
STAYING = {
    "capped scores": f"{PROJECTED} y = Attention <q_num_heads = 4, kv_num_heads = 4, softcap = 2.0> (q, k, v)",
    "a mask of flags by query": f"{PROJECTED} flags = Greater(added, low) y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, flags)",
}  # fmt: skip
HEAD = "g (float[n, s, 16] x, int64[n, s] mask, float[n, 1, s, s] added) => (float[n, s, 16] y) <int64[2] middle = {1, 2}, int64[1] one = {1}, float low = {0}>"


def attention(body: str, groups: int = HEADS) -> onnx.ModelProto:
    narrow = WIDTH * groups // HEADS
    weights = {"wq": numbers(WIDTH, WIDTH), "wk": numbers(WIDTH, narrow), "wv": numbers(WIDTH, narrow)}
    return model_of(f"{HEAD} {{ {body} }}", **weights)


def feed(batch: int, length: int) -> dict[str, np.ndarray]:
    mask = np.ones((batch, length), np.int64)
    mask[-1, length // 2 + 1 :] = 0
    return {"x": numbers(batch, length, WIDTH), "mask": mask, "added": numbers(batch, 1, length, length)}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_standards_attention_is_fused_like_any_other(name):
    before = attention(ATTENTIONS[name])
    after, changed = rewritten(before, fuse_heads)
    assert changed == 1
    assert kinds(after)["MultiHeadAttention"] == 1
    for given in (feed(2, 7), feed(1, 3)):
        assert relative_error(outputs(after, given), outputs(before, given)) <= TIGHT


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_queries_of_the_standards_attention_stay(groups):
    """Their heads are repeated nowhere in the file, so there is nothing to hand over."""
    body = f"{PROJECTED} y = Attention <q_num_heads = 4, kv_num_heads = {groups}> (q, k, v)"
    assert_untouched(attention(body, groups), fuse_heads)


@pytest.mark.parametrize("name", STAYING)
def test_what_no_fused_operator_computes_stays(name):
    assert_untouched(attention(STAYING[name]), fuse_heads)


def test_products_that_the_runtime_has_fused_already():
    body = f"""{PROJECTED} qs = Reshape(q, heads) qh = Transpose <perm = [0, 2, 1, 3]> (qs) ks = Reshape(k, heads)
        kh = Transpose <perm = [0, 2, 1, 3]> (ks) vs = Reshape(v, heads) vh = Transpose <perm = [0, 2, 1, 3]> (vs)
        scores = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (qh, kh) p = Softmax (scores) c = MatMul(p, vh)
        ct = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape(ct, whole)"""
    before = attention(body)
    arrays = {"heads": np.array([0, 0, HEADS, WIDTH // HEADS]), "whole": np.array([0, 0, WIDTH])}
    before.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    after, changed = rewritten(before, fuse_heads)
    assert changed == 1
    given = feed(2, 7)
    assert relative_error(outputs(after, given), outputs(before, given)) <= TIGHT
