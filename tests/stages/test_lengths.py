"""Padding, and batches by length: who runs with whom, and what that is worth."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planting import CONFIG, tiny_bert, tiny_cnn
from unlag.measure import batches as batches_module
from unlag.measure.bench import Bench, open_bench
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Evaluation, Feed, Shape
from unlag.stages.lengths import (
    ARRIVAL,
    BUCKETED,
    SAME,
    SORTED,
    Batches,
    bucket_widths,
    by_width,
    feeds_of,
    in_order,
    measure_lengths,
    rows_of,
)

some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda x: np.array(x, np.int64))


def text_feed(*lengths: int, width: int | None = None, seed: int = 0) -> Feed:
    rng = np.random.default_rng(seed)
    wide = width or max(lengths)
    mask = (np.arange(wide) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": mask * rng.integers(1, 80, mask.shape), "attention_mask": mask, "token_type_ids": 0 * mask}


@given(some_lengths, st.integers(1, 8))
def test_every_text_runs_once_and_fits(lengths, batch):
    widths = np.array(bucket_widths(lengths))
    for cut in (
        in_order(np.arange(len(lengths)), lengths, batch),
        in_order(np.argsort(lengths), lengths, batch),
        by_width(lengths, lengths, batch),
        by_width(widths[np.searchsorted(widths, lengths)], lengths, batch),
    ):
        assert sorted(itertools.chain(*cut.members)) == list(range(len(lengths)))
        for rows, width in zip(cut.members, cut.widths, strict=True):
            assert 1 <= len(rows) <= batch
            assert lengths[list(rows)].max() <= width
        assert 0 <= cut.padding(lengths) < 1


def test_padding_is_what_is_filled_up():
    lengths = np.array([1, 9, 2, 8])
    assert in_order(np.arange(4), lengths, 2) == Batches(((0, 1), (2, 3)), (9, 8))
    assert in_order(np.arange(4), lengths, 2).padding(lengths) == pytest.approx(14 / 34)
    assert in_order(np.argsort(lengths), lengths, 2).padding(lengths) == pytest.approx(2 / 22)
    assert by_width(lengths, lengths, 2).padding(lengths) == 0


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 4))
def test_buckets_have_the_widths_that_pad_least(given_lengths, most):
    lengths = np.array(given_lengths)

    def tokens(widths: tuple[int, ...]) -> int:
        return sum(min(width for width in widths if width >= length) for length in given_lengths)

    *shorter, longest = sorted(set(given_lengths))
    best = min(tokens((*chosen, longest)) for count in range(most) for chosen in itertools.combinations(shorter, count))
    found = bucket_widths(lengths, most)
    assert found[-1] == longest
    assert list(found) == sorted(set(found))
    assert len(found) <= most
    assert tokens(found) == best


def test_texts_come_out_of_padded_feeds_as_they_went_in():
    texts = rows_of([text_feed(3, 7, 5), text_feed(2, width=4, seed=1)])
    assert [text["input_ids"].shape for text in texts] == [(1, 3), (1, 7), (1, 5), (1, 2)]
    assert all((text["attention_mask"] == 1).all() and (text["input_ids"] > 0).all() for text in texts)
    (again,) = feeds_of(texts[:3], Batches(((0, 1, 2),), (7,)))
    for name, array in text_feed(3, 7, 5).items():
        assert np.array_equal(again[name], array)
        assert again[name].dtype == array.dtype


@pytest.mark.parametrize(
    "feed",
    [
        {"image": np.zeros((1, 3, 8, 8), np.float32)},
        {"input_ids": np.ones((1, 4), np.int64)},
        {"input_ids": np.ones((1, 4), np.int64), "attention_mask": np.array([[0, 1, 1, 1]])},
        {"input_ids": np.ones((1, 4), np.int64), "attention_mask": np.zeros((1, 4), np.int64)},
        {"input_ids": np.ones((1, 4), np.int64), "attention_mask": np.ones((1, 4), np.int64), "x": np.ones((1, 4, 2))},
    ],
    ids=["an image", "no mask", "padded in front", "empty", "another shape"],
)
def test_what_is_no_text_padded_at_its_end_is_left_alone(feed):
    assert rows_of([feed]) is None


def bench_of(folder, model: onnx.ModelProto, feeds: list[Feed] | None, **options: str) -> tuple[Bench, Variant]:
    onnx.save(model, folder / "model.onnx")
    variant = Variant("onnxruntime", str(folder / "model.onnx"), options)
    bench = open_bench(Case(standard=variant, variant=variant, shapes=(Shape(2, 8),)), Shape(2, 8))
    task = Evaluation("m", feeds, "mean_pool", np.zeros(1), lambda a, _: a, lambda *_: 0.0) if feeds else None
    return dataclasses.replace(bench, workload=dataclasses.replace(bench.workload, evaluation=task)), variant


def test_ways_to_batch_are_timed_on_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(batches_module, "disturbance", lambda *_: None)
    rng = np.random.default_rng(0)
    lengths = np.where(rng.random(192) < 0.1, CONFIG.max_position_embeddings, 2)
    bench, variant = bench_of(
        tmp_path, tiny_bert(), [text_feed(*map(int, lengths[k : k + 2])) for k in range(0, 192, 2)]
    )
    found = measure_lengths(bench, variant)
    assert (found.texts, found.batch, found.shortest, found.median, found.longest) == (192, 32, 2, 2, 32)
    assert [way.name for way in found.ways] == [ARRIVAL, SORTED, SAME, BUCKETED]
    assert found.quiet
    arrival, by_length, same, buckets = found.ways
    assert arrival.ratio.estimate == 1
    assert arrival.padding > 0.5 > by_length.padding
    assert same.padding == 0
    assert buckets.widths == (2, 32)
    assert same.ratio.estimate < 0.8, "four fifths of the tokens are padding"
    assert found.best is not arrival
    assert found.way(SAME) is same


@pytest.mark.parametrize("feeds", [None, [text_feed(5, 5), text_feed(5)]], ids=["no data set", "texts of one length"])
def test_where_there_are_no_lengths_nothing_is_measured(tmp_path, feeds):
    assert measure_lengths(*bench_of(tmp_path, tiny_bert(), feeds)) is None


def test_images_have_no_lengths(tmp_path):
    feed = {"image": np.zeros((1, 3, 24, 24), np.float32)}
    assert measure_lengths(*bench_of(tmp_path, tiny_cnn(), [feed, feed])) is None


def test_a_model_of_one_shape_runs_no_other_batches(tmp_path):
    model = onnx.ModelProto()
    model.CopyFrom(tiny_bert())
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 8
    assert measure_lengths(*bench_of(tmp_path, model, [text_feed(3), text_feed(4)])) is None
