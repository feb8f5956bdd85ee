from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

from calibrating import statically_quantized
from planting import cnn_feed, tiny_bert, tiny_cnn, tiny_feed
from rewriting import assert_untouched, outputs, parsed, rewritten
from unlag.rewrites.shift_to_unsigned import shift_to_unsigned

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
SIGNED = "float s = {0.05}, int8 z = {-3}, float u = {0.02}, int8 n = {0}"
WEIGHT = np.random.default_rng(1).integers(-127, 128, (4, 4)).astype(np.int8)
SMALL_WEIGHT = (WEIGHT // 2).astype(np.int8)


def types(model: onnx.ModelProto) -> dict[str, int]:
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, feed: dict, *, passes: bool = False) -> None:
    ours, theirs = (outputs(model, feed, passes=passes) for model in (after, before))
    assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("weights", [False, True])
def test_a_network_in_integer_form_gives_the_very_same(weights):
    before = statically_quantized(tiny_cnn(), cnn_feed(), QuantType.QInt8, QuantFormat.QOperator)
    after, changed = rewritten(before, partial(shift_to_unsigned, weights=weights))
    assert changed == 8
    zeros = [name for name, kind in types(after).items() if "zero" in name and kind == onnx.TensorProto.UINT8]
    assert len(zeros) >= changed
    # The signed kernels sum in 32 bits; unsigned times signed may clip on a CPU without VNNI.
    if weights:
        assert_same(before, after, cnn_feed())
        assert_same(before, after, cnn_feed(), passes=True)


@pytest.mark.parametrize("weights", [False, True])
def test_pairs_give_the_very_same(weights):
    before = statically_quantized(tiny_bert(), tiny_feed(), QuantType.QInt8)
    after, changed = rewritten(before, partial(shift_to_unsigned, weights=weights))
    quantizers = [n for n in after.graph.node if n.op_type == "QuantizeLinear"]
    assert changed == len(quantizers)
    assert all(types(after)[n.input[2]] == onnx.TensorProto.UINT8 for n in quantizers)
    assert_same(before, after, tiny_feed())


def product(weight: np.ndarray, zeros: str = "z, n") -> onnx.ModelProto:
    text = f"""g (float[2, 4] x) => (int32[2, 4] y) <{SIGNED}> {{
        q = QuantizeLinear(x, s, z)  y = MatMulInteger(q, w, {zeros}) }}"""
    return parsed(text, w=weight)


def test_a_zero_point_that_was_left_out_is_added():
    text = f"""g (float[2, 4] x) => (int32[2, 4] y) <{SIGNED}> {{
        q = QuantizeLinear(x, s, n)  y = MatMulInteger(q, w) }}"""
    before = parsed(text, w=SMALL_WEIGHT)
    after, changed = rewritten(before, shift_to_unsigned)
    assert changed == 1
    assert len(after.graph.node[1].input) == 3
    assert_same(before, after, {"x": X})


@pytest.mark.parametrize(("weight", "kind"), [(WEIGHT, np.uint8), (SMALL_WEIGHT, np.int8)])
def test_only_weights_with_large_codes_are_shifted(weight, kind):
    before = product(weight)
    after, changed = rewritten(before, partial(shift_to_unsigned, weights=True))
    assert changed == 1
    name = after.graph.node[1].input[1]
    assert types(after)[name] == onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    assert_same(before, after, {"x": X})


def test_a_zero_point_that_weights_share_stays_theirs():
    before = product(SMALL_WEIGHT, "n, n")
    before.graph.node[0].input[2] = "n"
    after, changed = rewritten(before, shift_to_unsigned)
    assert changed == 1
    kinds = types(after)
    assert kinds[after.graph.node[1].input[2]] == onnx.TensorProto.UINT8
    assert kinds[after.graph.node[1].input[3]] == onnx.TensorProto.INT8
    assert_same(before, after, {"x": X})


def test_constants_that_are_added_follow():
    text = f"""g (float[2, 4] x) => (float[2, 4] y) <{SIGNED}> {{
        q = QuantizeLinear(x, s, z)  a = com.microsoft.QLinearAdd(q, s, z, b, u, n, s, z)
        c = com.microsoft.QLinearConcat <axis = 0> (s, z, a, s, z, a, s, z)  t = Transpose <perm = [1, 0]> (c)
        r = Transpose <perm = [1, 0]> (t)  g = Gather(r, i)  y = DequantizeLinear(g, s, z) }}"""
    before = parsed(text, b=WEIGHT[0], i=np.array([3, 0]))
    after, changed = rewritten(before, shift_to_unsigned)
    assert changed == 6
    assert_same(before, after, {"x": X})


@pytest.mark.parametrize(
    ("outs", "rest"),
    [
        ("int8[2, 4] q", ""),
        ("float[2, 4] y", "r = Relu(q)  y = DequantizeLinear(r, s, z)"),
        ("float[2, 4] y", "b = Cast <to = 6> (q)  y = DequantizeLinear(b, s)"),
    ],
    ids=["an output", "an operator on codes", "a cast"],
)
def test_codes_that_others_see_stay(outs, rest):
    text = f"g (float[2, 4] x) => ({outs}) <{SIGNED}> {{ q = QuantizeLinear(x, s, z)  {rest} }}"
    assert_untouched(parsed(text), shift_to_unsigned)


def test_codes_beside_a_signed_input_stay():
    text = f"""g (float[2, 4] x, int8[2, 4] k) => (float[2, 4] y) <{SIGNED}> {{
        q = QuantizeLinear(x, s, z)  a = com.microsoft.QLinearAdd(q, s, z, k, u, n, s, z)
        y = DequantizeLinear(a, s, z) }}"""
    assert_untouched(parsed(text), shift_to_unsigned)


def test_unsigned_codes_stay():
    assert_untouched(statically_quantized(tiny_cnn(), cnn_feed()), shift_to_unsigned)
