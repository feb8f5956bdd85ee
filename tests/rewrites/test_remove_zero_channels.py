# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import LAYERS, cnn_feed, editable, tiny_bert, tiny_cnn
from rewriting import assert_keeps, assert_untouched, parsed, rewritten
from unlag.rewrites.remove_zero_channels import remove_zero_channels
from zoo.pruned_channels_kept import infect, twin

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 6)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 6, 8, 8)).astype(np.float32)
DEAD = [1, 4, 5]


def _weights() -> dict[str, np.ndarray]:
    drawn = {
        "a": (6, 8), "b": (8, 6), "at": (8, 6), "bt": (6, 8), "bias": (8,), "loud": (8,), "last": (6,), "k": (8, 6, 3, 3), "l": (6, 8, 3, 3),
        "c3": (8, 1, 1), "one": (), "three": (),
    }  # fmt: skip
    made = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in drawn.items()}
    made["a"][:, DEAD] = 0
    made["bt"] = np.ascontiguousarray(made["b"].T)
    for name in ("at", "bias", "k", "c3"):
        made[name][DEAD] = 0
    made["unread"] = made["b"].copy()
    made["unread"][DEAD] = 0
    made["full"] = RNG.standard_normal((6, 8)).astype(np.float32)
    made["one"], made["three"] = np.float32(1), np.float32(3)
    return made


NUMBERS = _weights()
CUT = {
    "plain": "h = MatMul(x, a) y = MatMul(h, b)",
    "with a bias and an activation": "h = MatMul(x, a) i = Add(h, bias) r = Relu(i) y = MatMul(r, b)",
    "a gate on itself": "h = MatMul(x, a) s = Sigmoid(h) g = Mul(h, s) y = MatMul(g, b)",
    "rows that nobody reads, whatever the bias": "h = MatMul(x, full) i = Add(h, loud) s = Sigmoid(i) y = MatMul(s, unread)",
}
IMAGES = {
    "convolutions": "h = Conv<pads = [1, 1, 1, 1]>(x, k, bias) r = Relu(h) y = Conv<pads = [1, 1, 1, 1]>(r, l, last)",
    "pooled in between": "h = Conv(x, k) i = Add(h, c3) r = Relu(i) p = MaxPool<kernel_shape = [2, 2]>(r) y = Conv(p, l)",
}
KEPT = {
    "a bias that is not zero": "h = MatMul(x, a) i = Add(h, loud) y = MatMul(i, b)",
    "a function that is not zero there": "h = MatMul(x, a) s = Sigmoid(h) y = MatMul(s, b)",
    "one is added": "h = MatMul(x, a) s = Add(h, one) y = MatMul(s, b)",
    "two read it": "h = MatMul(x, a) m = MatMul(h, b) n = ReduceMax(h) y = Add(m, n)",
    "turned around in between": "h = MatMul(x, a) t = Transpose<perm = [0, 2, 1]>(h) u = Transpose<perm = [0, 2, 1]>(t) y = MatMul(u, b)",
    "normalized over the channels": "h = MatMul(x, a) s = Softmax(h) y = MatMul(s, b)",
    "no zero": "h = MatMul(x, full) y = MatMul(h, b)",
}


def model_of(body: str, shape: str = "2, 3, 6") -> onnx.ModelProto:
    used = {name: array for name, array in NUMBERS.items() if re.search(rf"[(,]\s*{name}\s*[,)]", body)}
    return parsed(f"g (float[{shape}] x) => (float y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", CUT)
def test_zero_channels_are_cut(name):
    before = model_of(CUT[name])
    after, changed = rewritten(before, remove_zero_channels)
    assert changed == len(DEAD)
    assert {5} <= {size for tensor in after.graph.initializer for size in tensor.dims}
    assert_keeps(before, after, x=X)


@pytest.mark.parametrize("name", IMAGES)
def test_filters_are_cut(name):
    before = model_of(IMAGES[name], "2, 6, 8, 8")
    after, changed = rewritten(before, remove_zero_channels)
    assert changed == len(DEAD)
    assert_keeps(before, after, x=IMAGE)


def test_transposed_weights():
    before = model_of("h = Gemm<transB = 1>(x, at, bias) r = Relu(h) y = Gemm<transB = 1>(r, bt, last)", "2, 6")
    after, changed = rewritten(before, remove_zero_channels)
    assert changed == len(DEAD)
    assert_keeps(before, after, x=X[0, :2])


@pytest.mark.parametrize("name", KEPT)
def test_what_carries_something_stays(name):
    assert_untouched(model_of(KEPT[name]), remove_zero_channels)


def test_one_channel_is_left():
    model = model_of("h = MatMul(x, full) y = MatMul(h, unread)")
    zero = onnx.numpy_helper.from_array(np.zeros((8, 6), np.float32), "unread")
    model.graph.initializer[[t.name for t in model.graph.initializer].index("unread")].CopyFrom(zero)
    after, changed = rewritten(model, remove_zero_channels)
    assert changed == 7
    assert_keeps(model, after, x=X)


def test_whole_models():
    for model, feed, pairs in ((tiny_bert(), {}, LAYERS), (tiny_cnn(), cnn_feed(), 1)):
        draft = editable(model)
        assert infect(draft) == pairs
        before = ir.to_proto(draft)
        after, changed = rewritten(before, remove_zero_channels)
        assert changed > 0
        assert_keeps(before, after, **feed)


def test_scattered_zeros_stay():
    assert_untouched(twin().variant, remove_zero_channels)
