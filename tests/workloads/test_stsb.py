"""STS-B: its feeds, its score, and the published score of the real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from encoder_requests import encoder_request, rows_of
from unlag import assets
from unlag.demo.bert import build_bert
from unlag.errors import UsageError
from unlag.model.workload import Shape, TensorInfo
from unlag.workloads import stsb

PUBLISHED = 82.03
"""MTEB's results for all-MiniLM-L6-v2, STSBenchmark test, cosine Spearman."""


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("standard") / "standard.onnx"
    onnx.save(build_bert(assets.minilm_checkpoint()), path)
    return path


def test_the_real_model_has_its_published_score(standard: Path) -> None:
    evaluation = stsb.load(encoder_request(asked=Shape(16, 128))).evaluation
    assert evaluation is not None
    rows = rows_of(onnxruntime.InferenceSession(standard), evaluation)
    predictions = evaluation.predict(rows, rows)
    assert evaluation.score(predictions, evaluation.labels) == pytest.approx(PUBLISHED, abs=0.05)
    shuffled = np.random.default_rng(0).permutation(predictions)
    assert abs(evaluation.score(shuffled, evaluation.labels)) < 10
    assert evaluation.score(evaluation.labels, evaluation.labels) == pytest.approx(100)


def test_every_sentence_is_run_once_without_padding() -> None:
    workload = stsb.load(encoder_request())
    evaluation = workload.evaluation
    assert evaluation is not None
    assert len(evaluation.labels) == stsb.TEST_PAIRS
    assert all(feed["attention_mask"].all() for feed in evaluation.feeds)
    assert all(feed["input_ids"].shape[0] == 1 for feed in evaluation.feeds)
    first, second, _ = stsb.read_pairs()
    assert len(evaluation.feeds) == len({*first, *second})
    assert workload.name == "stsb"


def test_batched_rows_find_back_to_their_pairs() -> None:
    """A stand-in encoder that depends on the tokens alone must score alike however the texts are batched."""

    def predictions(batch: int) -> np.ndarray:
        evaluation = stsb.load(encoder_request(asked=Shape(batch, 128))).evaluation
        assert evaluation is not None
        rows = []
        for feed in evaluation.feeds:
            angles = feed["input_ids"].astype(np.float64) * feed["attention_mask"]
            rows.append(np.stack([np.cos(angles).sum(1), np.sin(angles).sum(1), np.cos(2 * angles).sum(1)], 1))
        stacked = np.concatenate(rows).astype(np.float32)
        return evaluation.predict(stacked, stacked)

    np.testing.assert_allclose(predictions(1), predictions(7), atol=1e-5)


def test_the_timed_feed_is_dense_real_text() -> None:
    workload = stsb.load(encoder_request(asked=Shape(3, 40)))
    ids = workload.feed["input_ids"]
    assert workload.shape == "3x40"
    assert ids.shape == (3, 40)
    assert (ids[:, 0] == 101).all()
    assert (ids[:, -1] == 102).all()
    assert ids[:, 1:-1].min() > 102
    assert len({row.tobytes() for row in ids}) == 3
    assert workload.feed["attention_mask"].all()
    assert not workload.feed["token_type_ids"].any()


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_the_shortest_shapes_can_be_timed(sequence: int) -> None:
    workload = stsb.load(encoder_request(asked=Shape(1, sequence)))
    assert workload.feed["input_ids"].shape == (1, sequence)
    assert all(feed["attention_mask"].any(axis=1).all() for feed in workload.agreement)


def test_agreement_covers_padding_and_real_lengths() -> None:
    feeds = stsb.load(encoder_request(asked=Shape(2, 32))).agreement
    assert len(feeds) == 8
    assert [feed["input_ids"].shape for feed in feeds[:4]] == [(2, 32)] * 4
    assert not feeds[3]["attention_mask"].all()
    assert any(feed["input_ids"].shape[1] != 32 for feed in feeds[4:])


def test_the_seed_changes_the_texts_and_nothing_else() -> None:
    first, again, other = (stsb.load(encoder_request(seed=seed)) for seed in (0, 0, 1))
    assert first.feed["input_ids"].tobytes() == again.feed["input_ids"].tobytes()
    assert first.feed["input_ids"].tobytes() != other.feed["input_ids"].tobytes()
    assert first.evaluation is not None
    assert other.evaluation is not None
    assert len(first.evaluation.feeds) == len(other.evaluation.feeds)


@pytest.mark.parametrize("dims", [{}, {"batch": 4, "sequence": 16}], ids=["in the model", "by --dim"])
def test_fixed_sizes_are_filled_with_padding(dims: dict[str, int]) -> None:
    shape = ("batch", "sequence") if dims else (4, 16)
    workload = stsb.load(encoder_request(shape=shape, dims=dims))
    evaluation = workload.evaluation
    assert evaluation is not None
    feeds = [workload.feed, *workload.agreement, *evaluation.feeds]
    assert {feed["input_ids"].shape for feed in feeds} == {(4, 16)}
    assert workload.shape == "4x16"
    for feed in evaluation.feeds:
        assert ((feed["input_ids"] != 0) == (feed["attention_mask"] == 1)).all()
        last = feed["attention_mask"].sum(axis=1) - 1
        assert (feed["input_ids"][np.arange(4), last] == 102).all()


def test_only_the_models_inputs_are_made_in_its_type() -> None:
    feed = stsb.load(encoder_request(names=("attention_mask", "input_ids"), dtype="int32")).feed
    assert list(feed) == ["attention_mask", "input_ids"]
    assert {array.dtype for array in feed.values()} == {np.dtype("int32")}


def test_a_pooled_output_is_taken_as_it_is() -> None:
    pooled = TensorInfo("sentence", "float32", ("batch", 384))
    evaluation = stsb.load(encoder_request(output=pooled)).evaluation
    assert evaluation is not None
    assert evaluation.reduction == "none"


@pytest.mark.parametrize("rows", [np.nan, np.inf, 0.0], ids=str)
def test_a_broken_model_scores_zero(rows: float) -> None:
    evaluation = stsb.load(encoder_request(asked=Shape(64, 128))).evaluation
    assert evaluation is not None
    count = sum(len(feed["input_ids"]) for feed in evaluation.feeds)
    broken = np.full((count, 4), rows, np.float32)
    assert evaluation.score(evaluation.predict(broken, broken), evaluation.labels) == 0.0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("pixel_values",), "takes pixel_values, not input_ids"),
        ((), "takes nothing"),
        (("input_ids", "past_key_values.0.key"), "also takes past_key_values"),
    ],
)
def test_a_model_that_reads_no_text_is_told_what_to_use(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        stsb.load(encoder_request(names=names))
    assert "--workload random" in caught.value.hint


def test_another_vocabulary_or_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="50265 tokens"):
        stsb.load(encoder_request(limits={"input_ids": 50_265}))
    with pytest.raises(UsageError, match="rank 3"):
        stsb.load(encoder_request(shape=("batch", "sequence", 4)))


def test_a_file_with_lost_pairs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "sts-test.csv"
    short.write_text("genre\tfile\tyear\t1\t2.5\tone\ttwo\n", "utf-8")
    monkeypatch.setattr(assets, "stsb_test", lambda: short)
    with pytest.raises(UsageError, match="1 pairs, not the 1379"):
        stsb.load(encoder_request())
