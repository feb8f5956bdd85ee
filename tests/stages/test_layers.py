"""Layers of a model, by names that stay the same whatever is done to the graph around them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from planting import LAYERS, editable, flash, tiny_bert, tiny_cnn
from unlag.rewrites.fuse_attention import fuse_attention
from unlag.rewrites.pack_projections import pack_projections
from unlag.stages.layers import Layer, covers, find_layers, overlap
from unlag.stages.quantize import scheme_of


def named(model: ir.Model, standard: ir.Model) -> dict[str, Layer]:
    return {placed.layer.name: placed.layer for placed in find_layers(model, standard)}


def model_of(text: str, **weights: np.ndarray) -> ir.Model:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> {text}')
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return ir.from_proto(made)


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def test_products_tables_and_convolutions_are_layers_and_small_constants_are_none():
    bert, cnn = editable(tiny_bert()), editable(tiny_cnn())
    kinds = [layer.kind for layer in named(bert, bert).values()]
    assert kinds.count("product") == 4 * LAYERS
    assert kinds.count("table") >= 1
    assert [layer.kind for layer in named(cnn, cnn).values()] == ["convolution"] * 4 + ["product"]
    small = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = MatMul(x, w) }", w=matrix(4, 4))
    assert not named(small, small)


def test_what_an_integer_kernel_can_not_do_is_no_layer():
    wide = matrix(16, 16)
    factors = model_of("g (float[n, 16] x) => (float[n, 16] y) { y = Gemm <alpha = 0.5> (x, w) }", w=wide)
    computed = model_of("g (float[n, 16] x, float[16, 16] w) => (float[n, 16] y) { y = MatMul(x, w) }")
    left = model_of("g (float[16, n] x) => (float[16, n] y) { y = MatMul(w, x) }", w=wide)
    along = model_of("g (int64[n] i) => (float[16, n] y) { y = Gather <axis = 1> (w, i) }", w=wide)
    for model in (factors, computed, left, along):
        assert not named(model, model)


def test_a_layer_has_the_standards_name_in_any_graph():
    standard = editable(tiny_bert())
    other = editable(tiny_bert())
    for number, value in enumerate(list(other.graph.initializers.values())):
        other.graph.initializers.pop(value.name)
        value.name = f"constant.{number}"
        other.graph.initializers[value.name] = value
    assert set(named(other, standard)) == set(named(standard, standard))


def test_parts_of_a_packed_weight_are_columns_of_it_and_the_other_way_round():
    weights = {"q": matrix(64, 64, 1), "k": matrix(64, 64, 2), "v": matrix(64, 64, 3)}
    separate = model_of(
        "g (float[n, 64] x) => (float[n, 64] a, float[n, 64] b, float[n, 64] c)"
        " { a = MatMul(x, q)  b = MatMul(x, k)  c = MatMul(x, v) }", **weights,
    )  # fmt: skip
    packed = model_of(
        "g (float[n, 64] x) => (float[n, 192] y) { y = MatMul(x, w) }",
        w=np.concatenate([weights["q"], weights["k"], weights["v"]], axis=1),
    )
    (both,) = named(packed, separate).values()
    assert both.parts == ("q", "k", "v")
    assert list(named(separate, packed)) == ["w[0:64]", "w[64:128]", "w[128:192]"]
    (own,) = named(packed, packed).values()
    assert own.parts == ("w",)


def test_the_packed_layer_is_as_careful_as_the_most_careful_of_its_parts():
    layer = Layer("q", "product", (64, 192), ("q", "k", "v"))
    assert scheme_of(layer, "dynamic_int8", {"k": "float32"}) == "float32"
    assert scheme_of(layer, "static_int8", {"k": "dynamic_int8"}) == "dynamic_int8"
    assert scheme_of(layer, "dynamic_int8", {}) == "dynamic_int8"
    whole = Layer("w", "product", (64, 192), ("w",))
    assert scheme_of(whole, "dynamic_int8", {"w[64:128]": "float32"}) == "float32"
    part = Layer("w[0:64]", "product", (64, 64), ("w[0:64]",))
    assert scheme_of(part, "float32", {"w": "dynamic_int8"}) == "dynamic_int8", "it has all columns"
    assert scheme_of(part, "dynamic_int8", {"w[64:128]": "float32"}) == "dynamic_int8"


def test_a_layer_gets_what_there_is_for_its_kind():
    attention = Layer("a", "attention", (64, 192), ("a",))
    table = Layer("t", "table", (80, 64), ("t",))
    convolution = Layer("c", "convolution", (8, 8, 3, 3), ("c",))
    recurrence = Layer("r", "recurrence", (1, 64, 16), ("r",))
    assert scheme_of(attention, "static_int8", {}) == "dynamic_int8"
    assert scheme_of(attention, "blocks_int4", {}) == "weight_int8"
    assert scheme_of(table, "static_int8", {}) == "dynamic_int8"
    assert scheme_of(table, "float32", {}) == "float32"
    assert scheme_of(convolution, "static_int8", {}) == "static_int8"
    assert scheme_of(recurrence, "weight_int8", {}) == "float32"


def test_columns_that_overlap_and_cover():
    assert overlap("w[0:64]", "w[63:128]")
    assert overlap("w", "w[63:128]")
    assert not overlap("w[0:64]", "w[64:128]")
    assert not overlap("w", "v")
    assert covers("w", "w[3:4]")
    assert not covers("w[3:4]", "w")


def test_names_survive_packing_and_fusing():
    standard = editable(tiny_bert())
    before = named(standard, standard)
    separate = editable(flash(segmented_qkv=True))
    assert pack_projections(separate) == LAYERS
    after = named(separate, standard)
    assert {part for layer in after.values() for part in layer.parts} >= {n for n in before if "dense" in n}
    fused = editable(tiny_bert())
    assert fuse_attention(fused) == LAYERS
    kinds = [layer.kind for layer in named(fused, standard).values()]
    assert kinds.count("attention") == LAYERS
    parts = {part.split("[")[0] for layer in named(fused, standard).values() for part in layer.parts}
    assert parts == set(before)


def test_a_transposed_gemm_has_the_same_columns():
    wide = matrix(32, 16)
    plain = model_of("g (float[n, 32] x) => (float[n, 16] y) { y = MatMul(x, w) }", w=wide)
    turned = model_of("g (float[n, 32] x) => (float[n, 16] y) { y = Gemm <transB = 1> (x, v) }", v=wide.T.copy())
    assert list(named(turned, plain)) == ["w"]
    assert list(named(plain, turned)) == ["v"]
