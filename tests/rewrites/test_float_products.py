# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType

from planting import cnn_feed, editable, tiny_bert, tiny_cnn, tiny_feed
from quantizing import block_product, constant_products, dynamic, pack_blocks
from rewriting import assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.float_products import float_products, float_recurrences
from unlag.rewrites.packed_weights import unpacked_blocks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 5, 40)).astype(np.float32)
WEIGHT = RNG.normal(size=(40, 12)).astype(np.float32)
SCALES = (np.abs(WEIGHT).max(axis=0) / 127).astype(np.float32)
CODES = np.rint(WEIGHT / SCALES).astype(np.int8)
ZEROS = RNG.integers(-3, 4, 12).astype(np.int8)
BIAS = RNG.normal(size=12).astype(np.float32)
ACTIVATION_ERROR = 0.03
"""Of the largest output: 8-bit activations, rounded at every run."""

QUANTIZED = "q, a, z = DynamicQuantizeLinear(x)"
FORMS = {
    "spelled out": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) s = Mul(a, b) y = Mul(f, s)",
    "scales swapped": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) s = Mul(b, a) y = Mul(s, f)",
    "one scale after the other": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) s = Mul(f, a) y = Mul(s, b)",
    "fused": "y = com.microsoft.DynamicQuantizeMatMul(x, c, b, w)",
    "fused, to float": f"{QUANTIZED} y = com.microsoft.MatMulIntegerToFloat(q, c, a, b, z, w)",
}


def model_of(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    return parsed(f"g (float[a, m, 40] x) => (float[a, m, 12] y) {{ {text} }}", **constants)


def near(before: onnx.ModelProto, after: onnx.ModelProto, feed: dict[str, np.ndarray], tolerance: float) -> bool:
    return relative_error(outputs(after, feed), outputs(before, feed)) < tolerance


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_dynamic_product_becomes_a_product_by_the_dequantized_weight(form):
    before = model_of(FORMS[form], c=CODES, b=SCALES, w=ZEROS)
    after, changed = rewritten(before, float_products)
    assert changed == 1
    assert kinds(after) == {"MatMul": 1}
    exact = X @ ((CODES.astype(np.float32) - ZEROS) * SCALES)
    assert relative_error(outputs(after, {"x": X}), [exact]) < 1e-5
    assert near(before, after, {"x": X}, ACTIVATION_ERROR)


@pytest.mark.parametrize("form", ["fused", "fused, to float"])
def test_a_bias_inside_becomes_an_addition(form):
    text = FORMS[form].removesuffix(")") + ", bias)"
    before = model_of(text, c=CODES, b=SCALES, w=ZEROS, bias=BIAS)
    after, _changed = rewritten(before, float_products)
    assert kinds(after) == {"MatMul": 1, "Add": 1}
    assert near(before, after, {"x": X}, ACTIVATION_ERROR)


def test_one_quantization_for_two_products_goes_with_the_last_of_them():
    text = f"""{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) s = Mul(a, b) u = Mul(f, s)
        j = MatMulInteger(q, d, z, w) g = Cast<to = 1>(j) t = Mul(a, b) v = Mul(g, t) y = Add(u, v)"""
    other = np.ascontiguousarray(CODES[::-1, ::2].repeat(2, axis=1))
    before = model_of(text, c=CODES, d=other, b=SCALES, w=ZEROS)
    after, changed = rewritten(before, float_products)
    assert (changed, kinds(after)) == (2, {"MatMul": 2, "Add": 1})
    one = editable(before)
    assert float_products(one, lambda p: p.stored[0] is not None and p.stored[0].name == "c") == 1
    assert kinds(ir.to_proto(one))["DynamicQuantizeLinear"] == 1
    assert near(before, ir.to_proto(one), {"x": X}, ACTIVATION_ERROR)


def test_two_factors_that_are_both_quantized_at_every_run():
    text = """q, a, z = DynamicQuantizeLinear(x) r, b, w = DynamicQuantizeLinear(k)
        i = MatMulInteger(q, r, z, w) f = Cast<to = 1>(i) s = Mul(a, b) y = Mul(f, s)"""
    before = parsed(f"g (float[1, m, 40] x, float[1, 40, 12] k) => (float[1, m, 12] y) {{ {text} }}")
    after, changed = rewritten(before, float_products)
    assert (changed, kinds(after)) == (1, {"MatMul": 1})
    assert near(before, after, {"x": X, "k": WEIGHT[None]}, ACTIVATION_ERROR)


@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_whole_dynamically_quantized_bert(weight_type, per_channel):
    before = dynamic(tiny_bert(), op_types=["MatMul"], weight_type=weight_type, per_channel=per_channel)
    after, changed = rewritten(before, float_products)
    assert changed == 8
    assert kinds(after)["MatMul"] == kinds(tiny_bert())["MatMul"]
    assert kinds(after)["DynamicQuantizeLinear"] == 0
    theirs, ours = constant_products(editable(tiny_bert())), constant_products(editable(after))
    for (_node, exact), (_other, rounded) in zip(theirs, ours, strict=True):
        assert np.abs(rounded - exact).max() <= np.abs(exact).max() / 127 * 1.01


def test_convolutions_keep_their_attributes():
    before = dynamic(tiny_cnn(), op_types=["Conv"])
    after, changed = rewritten(before, float_products)
    assert changed == 4
    assert kinds(after)["ConvInteger"] == kinds(after)["DynamicQuantizeLinear"] == 0
    groups = [helper.get_attribute_value(a) for n in after.graph.node for a in n.attribute if a.name == "group"]
    assert sorted(groups) == [1, 1, 1, 32]
    assert near(tiny_cnn(), after, cnn_feed(), 0.05)


BLOCKS = [(4, 16), (8, 16), (8, 32), (4, 32), (2, 16)]


@pytest.mark.parametrize(("bits", "block"), BLOCKS)
@pytest.mark.parametrize("zeros", [False, True])
def test_packed_blocks_with_a_last_one_that_is_not_full(bits, block, zeros):
    packed, scales = pack_blocks(WEIGHT, bits, block)
    blocks = -(-40 // block)
    constants = {"c": packed, "s": scales}
    if zeros:
        constants["z"] = RNG.integers(0, 256, (12 * -(-blocks * bits // 8),)).astype(np.uint8)
    given = ", z" if zeros else ""
    text = f"y = com.microsoft.MatMulNBits<K = 40, N = 12, bits = {bits}, block_size = {block}>(x, c, s{given})"
    before = model_of(text, **constants)
    after, changed = rewritten(before, float_products)
    assert (changed, kinds(after)) == (1, {"MatMul": 1})
    assert near(before, after, {"x": X}, 1e-4)


def test_packed_codes_are_nearest_to_the_weight():
    packed, scales = pack_blocks(WEIGHT, 8, 16)
    model = editable(
        model_of(
            "y = com.microsoft.MatMulNBits<K = 40, N = 12, bits = 8, block_size = 16>(x, c, s)", c=packed, s=scales
        )
    )
    matrix = unpacked_blocks(next(iter(model.graph)))
    assert np.abs(matrix - WEIGHT).max() <= scales.max() / 2 * 1.001


def test_block_packed_bert():
    draft = editable(tiny_bert())
    for node, matrix in constant_products(draft):
        block_product(draft, node, matrix, bits=8)
    before = ir.to_proto(draft)
    after, changed = rewritten(before, float_products)
    assert changed == 8
    assert near(before, after, tiny_feed(), 1e-3)


def test_a_dynamically_quantized_lstm():
    rng = np.random.default_rng(0)
    w, r, b = (rng.normal(size=s).astype(np.float32) * 0.3 for s in ((2, 32, 6), (2, 32, 8), (2, 64)))
    text = """g (float[t, 1, 6] x) => (float[t, 2, 1, 8] y, float[2, 1, 8] h) {
        y, h, c = LSTM<hidden_size = 8, direction = "bidirectional">(x, w, r, b) }"""
    before = dynamic(parsed(text, w=w, r=r, b=b), op_types=["LSTM"], weight_type=QuantType.QInt8)
    assert kinds(before)["DynamicQuantizeLSTM"] == 1
    assert_untouched(before, float_products)
    after, changed = rewritten(before, float_recurrences)
    assert (changed, kinds(after)) == (1, {"LSTM": 1})
    feed = {"x": rng.normal(size=(4, 1, 6)).astype(np.float32)}
    assert near(before, after, feed, ACTIVATION_ERROR)
    assert near(parsed(text, w=w, r=r, b=b), after, feed, ACTIVATION_ERROR)


NEAR_MISSES = {
    "another zero point": f"{QUANTIZED} i = MatMulInteger(q, c, v, w) f = Cast<to = 1>(i) s = Mul(a, b) y = Mul(f, s)",
    "the activation's scale is missing": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) y = Mul(f, b)",
    "scaled by something else": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) s = Mul(a, x) r = ReduceMax<keepdims = 0>(s) y = Mul(f, r)",
    "the weight's scale twice": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) s = Mul(b, b) y = Mul(f, s)",
    "the sums go elsewhere too": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) f = Cast<to = 1>(i) s = Mul(a, b) p = Mul(f, s) y = Add(p, f)",
    "cast to another type": f"{QUANTIZED} i = MatMulInteger(q, c, z, w) e = Cast<to = 11>(i) f = Cast<to = 1>(e) s = Mul(a, b) y = Mul(f, s)",
    "a fixed scale of the activation": "q = QuantizeLinear(x, k, v) y = com.microsoft.MatMulIntegerToFloat(q, c, k, b, v, w)",
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay(name):
    constants = {"c": CODES, "b": SCALES, "w": ZEROS, "v": np.uint8(128), "k": np.float32(0.02)}
    assert_untouched(model_of(NEAR_MISSES[name], **constants), float_products)


def test_weights_that_are_inputs_or_ordered_by_an_index_stay():
    text = f"g (float[1, m, 40] x, int8[40, 12] c) => (float[1, m, 12] y) {{ {FORMS['fused']} }}"
    assert_untouched(parsed(text, b=SCALES, w=ZEROS), float_products)
    packed, scales = pack_blocks(WEIGHT, 4, 16)
    order = np.arange(48, dtype=np.int32) // 16
    text = "y = com.microsoft.MatMulNBits<K = 40, N = 12, bits = 4, block_size = 16>(x, c, s, , o)"
    assert_untouched(model_of(text, c=packed, s=scales, o=order), float_products)


def test_float_models_stay():
    assert_untouched(tiny_bert(), float_products)
    assert_untouched(tiny_cnn(), float_products)
