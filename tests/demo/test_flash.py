"""Each trait of the Flash variant alone: what it changes in the graph, and what it does to the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, numpy_helper

from unlag import assets
from unlag.demo.bert import BertConfig, build_bert, build_bert_from, random_weights
from unlag.demo.flash import INT8_MAX, NOTHING, FlashRecipe, make_flash, quantize_weight
from unlag.errors import UsageError

LAYERS = 2
PROJECTIONS = 4 * LAYERS
"""Packed Q/K/V, attention output, and two of the feed-forward block."""

CONFIG = BertConfig(80, 32, LAYERS, 4, 64, 32)
INT8, FLOAT16 = TensorProto.INT8, TensorProto.FLOAT16


@pytest.fixture(scope="module")
def standard() -> onnx.ModelProto:
    # Weights ten times BERT's initial ones, so that attention is not flat and its scale matters.
    weights = {
        name: array * 10 if array.ndim == 2 and "encoder" in name else array
        for name, array in random_weights(CONFIG).items()
    }
    return build_bert_from(CONFIG, weights)


@pytest.fixture(scope="module")
def minilm() -> onnx.ModelProto:
    return build_bert(assets.minilm_checkpoint())


def alone(**traits: bool) -> FlashRecipe:
    return msgspec.structs.replace(NOTHING, **traits)


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def change(standard: onnx.ModelProto, model: onnx.ModelProto) -> dict[str, int]:
    counts = kinds(model)
    counts.subtract(kinds(standard))
    return {kind: count for kind, count in counts.items() if count}


def stored(model: onnx.ModelProto, data_type: int) -> list[onnx.TensorProto]:
    return [tensor for tensor in model.graph.initializer if tensor.data_type == data_type]


def run(model: onnx.ModelProto, vocabulary: int = CONFIG.vocab_size) -> npt.NDArray[np.float32]:
    ids = np.random.default_rng(0).integers(0, vocabulary, (2, 16))
    mask = np.ones_like(ids)
    mask[1, 10:] = 0
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]


def cosine(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> float:
    return float((left * right).sum() / (np.linalg.norm(left) * np.linalg.norm(right)))


def test_nothing_planted_is_the_same_model(standard: onnx.ModelProto) -> None:
    planted = make_flash(standard, NOTHING)
    assert change(standard, planted) == {}
    assert {t.name for t in planted.graph.initializer} == {t.name for t in standard.graph.initializer}
    np.testing.assert_array_equal(run(planted), run(standard))
    assert NOTHING.options == {}


def test_the_standard_is_left_as_it_was(standard: onnx.ModelProto) -> None:
    before = standard.SerializeToString(deterministic=True)
    make_flash(standard)
    assert standard.SerializeToString(deterministic=True) == before


def test_int8_weights_are_dequantized_at_every_run(standard: onnx.ModelProto) -> None:
    model = make_flash(standard, alone(int8_weights=True))
    tables = 2  # words and token types are looked up; positions are sliced
    assert change(standard, model) == {"DequantizeLinear": PROJECTIONS + tables}
    assert len(stored(model, INT8)) == PROJECTIONS + tables
    scales = [t for t in model.graph.initializer if t.name.endswith("qkv.weight.scale")]
    assert [list(t.dims) for t in scales] == [[3 * CONFIG.hidden_size]] * LAYERS
    assert cosine(run(model), run(standard)) > 0.999


def test_per_tensor_gives_every_weight_one_scale(standard: onnx.ModelProto) -> None:
    model = make_flash(standard, alone(int8_weights=True, per_tensor=True))
    scales = [t for t in model.graph.initializer if t.name.endswith(".scale")]
    assert {tuple(t.dims) for t in scales} == {()}
    assert cosine(run(model), run(standard)) > 0.99


def test_fp16_matmuls_stand_between_casts(standard: onnx.ModelProto) -> None:
    model = make_flash(standard, alone(fp16_activations=True))
    assert change(standard, model) == {"Cast": 2 * PROJECTIONS}
    assert len(stored(model, FLOAT16)) == PROJECTIONS
    producers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type in ("Softmax", "LayerNormalization"):
            source = producers[node.input[0]]
            assert source.op_type in ("Add", "Cast")
    assert cosine(run(model), run(standard)) > 0.9999


def test_segmented_qkv_is_three_matmuls(standard: onnx.ModelProto) -> None:
    model = make_flash(standard, alone(segmented_qkv=True))
    assert change(standard, model) == {"MatMul": 2 * LAYERS, "Add": 2 * LAYERS, "Split": -LAYERS}
    assert not any("qkv" in t.name for t in model.graph.initializer)
    np.testing.assert_allclose(run(model), run(standard), atol=1e-5)


def test_extra_copies_are_inverse_transposes(standard: onnx.ModelProto) -> None:
    model = make_flash(standard, alone(extra_copies=True))
    assert change(standard, model) == {"Transpose": 2 * PROJECTIONS}
    np.testing.assert_allclose(run(model), run(standard), atol=1e-5)


def test_dropped_scale_changes_the_function(standard: onnx.ModelProto) -> None:
    model = make_flash(standard, alone(drop_scale=True))
    assert change(standard, model) == {"Div": -LAYERS}
    assert np.abs(run(model) - run(standard)).max() > 1e-2


def test_passes_off_is_an_option_and_no_edit(standard: onnx.ModelProto) -> None:
    recipe = alone(passes_off=True)
    assert recipe.options == {"optimization": "off"}
    assert change(standard, make_flash(standard, recipe)) == {}


def test_all_traits_together_run(standard: onnx.ModelProto) -> None:
    model = make_flash(standard)
    onnx.checker.check_model(model, full_check=True)
    counts = kinds(model)
    assert counts["DequantizeLinear"] == 6 * LAYERS + 2
    assert counts["Cast"] == kinds(standard)["Cast"] + 2 * 6 * LAYERS
    assert counts["Split"] == 0
    assert np.isfinite(run(model)).all()


@pytest.mark.parametrize(
    ("recipe", "share"),
    [
        (FlashRecipe(), 0.26),
        (alone(int8_weights=True), 0.26),
        (alone(fp16_activations=True), 0.77),  # the embedding table, half of the model, stays float32
        (alone(segmented_qkv=True, extra_copies=True, drop_scale=True), 1.0),
    ],
    ids=["all", "int8", "fp16", "graph"],
)
def test_the_size_is_what_the_trait_promises(minilm: onnx.ModelProto, recipe: FlashRecipe, share: float) -> None:
    assert make_flash(minilm, recipe).ByteSize() / minilm.ByteSize() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("recipe", "least"),
    [
        (alone(int8_weights=True), 0.995),
        (alone(fp16_activations=True), 0.99999),
        (alone(segmented_qkv=True), 0.999999),
        (alone(extra_copies=True), 0.999999),
    ],
    ids=["int8", "fp16", "segmented", "copies"],
)
def test_the_real_model_survives_every_trait_but_the_scale(
    minilm: onnx.ModelProto, recipe: FlashRecipe, least: float
) -> None:
    assert cosine(run(make_flash(minilm, recipe), 30_000), run(minilm, 30_000)) > least


def test_the_real_model_does_not_survive_the_lost_scale(minilm: onnx.ModelProto) -> None:
    assert cosine(run(make_flash(minilm, alone(drop_scale=True)), 30_000), run(minilm, 30_000)) < 0.99


def test_traits_that_find_nothing_are_said(standard: onnx.ModelProto) -> None:
    without = make_flash(standard, alone(segmented_qkv=True, drop_scale=True))
    for recipe, message in (
        (alone(segmented_qkv=True), "no packed"),
        (alone(drop_scale=True), "no attention scale"),
        (alone(per_tensor=True), "needs int8_weights"),
    ):
        with pytest.raises(UsageError, match=message):
            make_flash(without, recipe)
    empty = onnx.parser.parse_model('<ir_version: 10, opset_import: ["":21]> g (float[1] x) => (float[1] y) {y=Abs(x)}')
    for recipe in (alone(extra_copies=True), alone(int8_weights=True)):
        with pytest.raises(UsageError, match="no MatMul"):
            make_flash(empty, recipe)


WEIGHTS = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-100, 100, width=32)
)


@settings(deadline=None)
@given(weight=WEIGHTS, axis=st.sampled_from([None, 0, 1]))
def test_codes_are_within_half_a_step(weight: npt.NDArray[np.float32], axis: int | None) -> None:
    codes, scale = quantize_weight(weight, axis)
    assert codes.dtype == np.int8
    assert np.abs(codes.astype(int)).max() <= INT8_MAX
    wide = scale if axis is None else np.expand_dims(scale, 1 - axis)
    assert (np.abs(codes * wide - weight) <= wide * 0.501).all()


@pytest.fixture
def initializer_of(standard: onnx.ModelProto) -> Callable[[str], npt.NDArray[np.generic]]:
    by_name = {t.name: numpy_helper.to_array(t) for t in standard.graph.initializer}
    return by_name.__getitem__


def test_segments_are_the_columns_of_the_packed_weight(
    standard: onnx.ModelProto, initializer_of: Callable[[str], npt.NDArray[np.generic]]
) -> None:
    model = make_flash(standard, alone(segmented_qkv=True))
    found = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    prefix = "encoder.layer.0.attention.self."
    joined = np.concatenate([found[f"{prefix}{part}.weight"] for part in ("query", "key", "value")], axis=1)
    np.testing.assert_array_equal(joined, initializer_of(f"{prefix}qkv.weight"))
