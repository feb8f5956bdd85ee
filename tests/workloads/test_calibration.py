"""Runs for calibration: like the task's, and not the scored ones."""

from __future__ import annotations

import numpy as np
import pytest

from encoder_requests import encoder_request
from unlag.errors import UsageError
from unlag.model.workload import Shape, Signature, TensorInfo, Workload, WorkloadRequest
from unlag.workloads import npz, random, sentiment, stsb
from unlag.workloads._text import CALIBRATION_ROWS, CALIBRATION_TEXTS


def texts_of(feeds) -> set[bytes]:
    """Each row's tokens between [CLS] and [SEP], those that the mask keeps."""
    rows = [(ids, mask) for feed in feeds for ids, mask in zip(feed["input_ids"], feed["attention_mask"], strict=True)]
    return {ids[mask > 0].tobytes() for ids, mask in rows}


@pytest.mark.parametrize("workload", [stsb, sentiment])
def test_texts_for_calibration_are_not_the_scored_ones(workload):
    made = workload.load(encoder_request(asked=Shape(4, 32)))
    assert len(made.calibration) == CALIBRATION_ROWS + CALIBRATION_TEXTS
    assert {len(feed["input_ids"]) for feed in made.calibration} == {1}
    filled, own = made.calibration[:CALIBRATION_ROWS], made.calibration[CALIBRATION_ROWS:]
    assert {feed["input_ids"].shape[1] for feed in filled} == {32}
    assert len(texts_of(own)) == CALIBRATION_TEXTS
    assert not texts_of(own) & texts_of(made.evaluation.feeds)


def test_calibration_is_the_same_for_the_same_seed():
    one, other, another = (stsb.load(encoder_request(seed=seed)).calibration for seed in (0, 0, 1))
    assert [feed["input_ids"].tobytes() for feed in one] == [feed["input_ids"].tobytes() for feed in other]
    assert texts_of(one) != texts_of(another)


def test_a_model_of_a_fixed_size_is_calibrated_in_that_size():
    made = stsb.load(encoder_request(shape=(2, 16)))
    assert {feed["input_ids"].shape for feed in made.calibration} == {(2, 16)}


def test_random_runs_for_calibration_have_one_row_and_stay_small():
    info = TensorInfo("image", "float32", ("batch", 3, 224, 224))
    request = WorkloadRequest("", Signature((info,), ()), Shape(8, 1), {}, 0)
    feeds = random.load(request).calibration
    assert len(feeds) == 16
    assert {feed["image"].shape for feed in feeds} == {(1, 3, 224, 224)}
    large = WorkloadRequest("", Signature((TensorInfo("x", "float32", ("batch", 10_000_000)),), ()), Shape(1, 1), {}, 0)
    assert len(random.load(large).calibration) == 1


X = np.arange(40, dtype=np.float32).reshape(10, 4)


def load(path, names=("x",), batch: int = 4) -> Workload:
    signature = Signature(tuple(TensorInfo(name, "float32", ("batch", 4)) for name in names), ())
    return npz.load(WorkloadRequest(str(path), signature, Shape(batch, 1), {}, 0))


def test_a_file_without_rows_for_calibration_gives_its_own(tmp_path):
    np.savez(tmp_path / "a.npz", x=X)
    assert load(tmp_path / "a.npz").calibration[0]["x"].shape == (10, 4)
    np.savez(tmp_path / "b.npz", x=X, labels=np.arange(10) % 3)
    assert [len(feed["x"]) for feed in load(tmp_path / "b.npz").calibration] == [4, 4, 2]


def test_a_files_rows_for_calibration_are_cut_into_feeds(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, labels=np.arange(10) % 3, calibration=X + 100)
    made = load(tmp_path / "a.npz")
    assert [feed["x"].min() for feed in made.calibration] == [100, 116]
    assert made.feed["x"].max() < 100
    np.savez(tmp_path / "b.npz", a=X, b=X, **{"calibration.a": X + 1, "calibration.b": X + 2})
    made = load(tmp_path / "b.npz", ("a", "b"), batch=10)
    (feed,) = made.calibration
    assert np.array_equal(feed["b"] - feed["a"], np.ones_like(X))


def test_rows_for_calibration_that_do_not_fit_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, calibration=X[:, :3])
    with pytest.raises(UsageError, match=r"calibration: x is of shape \[10, 3\]"):
        load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", a=X, b=X, **{"calibration.a": X})
    with pytest.raises(UsageError, match=r"calibration has arrays a; the model takes a, b"):
        load(tmp_path / "b.npz", ("a", "b"))
