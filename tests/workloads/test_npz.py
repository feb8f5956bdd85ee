"""The user's own arrays: what fits, what doesn't and how it is said, and what labels make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unlag.errors import UsageError
from unlag.model.workload import Dimension, Shape, Signature, TensorInfo, Workload, WorkloadRequest
from unlag.workloads import npz

LOGITS = TensorInfo("logits", "float32", ("batch", 3))


def load(
    path: Path,
    shape: tuple[Dimension, ...] | None = ("batch", 4),
    dtype: str = "float32",
    output: TensorInfo = LOGITS,
    batch: int = 4,
) -> Workload:
    signature = Signature((TensorInfo("x", dtype, shape),), (output,))
    return npz.load(WorkloadRequest(str(path), signature, Shape(batch, 1), {}, 0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inputs.npz"


X = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_without_labels_the_arrays_are_one_feed(path: Path) -> None:
    np.savez(path, x=X)
    workload = load(path)
    np.testing.assert_array_equal(workload.feed["x"], X)
    assert workload.shape == "10x4"
    assert len(workload.agreement) == 1
    assert workload.evaluation is None


def test_classes_are_scored_by_accuracy(path: Path) -> None:
    labels = np.arange(10) % 3
    np.savez(path, x=X, labels=labels)
    workload = load(path)
    evaluation = workload.evaluation
    assert evaluation is not None
    assert evaluation.metric == "accuracy"
    assert [feed["x"].shape[0] for feed in evaluation.feeds] == [4, 4, 2]
    assert workload.feed["x"].shape == (4, 4)
    logits = np.eye(3, dtype=np.float32)[labels]
    assert evaluation.score(evaluation.predict(logits, logits), evaluation.labels) == 100
    logits[:5] = logits[:5, [1, 2, 0]]
    assert evaluation.score(evaluation.predict(logits, logits), evaluation.labels) == 50


def test_ratings_are_scored_by_rank(path: Path) -> None:
    labels = np.linspace(0, 1, 10)
    np.savez(path, x=X, labels=labels)
    evaluation = load(path, output=TensorInfo("y", "float32", ("batch", 1))).evaluation
    assert evaluation is not None
    assert evaluation.metric == "Spearman"
    rows = np.exp(labels).astype(np.float32)[:, None]
    assert evaluation.score(evaluation.predict(rows, rows), evaluation.labels) == pytest.approx(100)
    assert evaluation.score(evaluation.predict(-rows, rows), evaluation.labels) == pytest.approx(-100)


def test_a_fixed_batch_is_filled_up_and_not_scored(path: Path) -> None:
    labels = np.arange(10) % 3
    np.savez(path, x=X, labels=labels)
    evaluation = load(path, shape=(4, 4), batch=1).evaluation
    assert evaluation is not None
    assert [feed["x"].shape for feed in evaluation.feeds] == [(4, 4)] * 3
    rows = np.eye(3, dtype=np.float32)[np.append(labels, [2, 2])]
    assert evaluation.score(evaluation.predict(rows, rows), evaluation.labels) == 100


@pytest.mark.parametrize(("have", "want"), [("int32", "int64"), ("float16", "float32"), ("bool", "int64")])
def test_lossless_widening_is_done(path: Path, have: str, want: str) -> None:
    np.savez(path, x=(X > 7).astype(have))
    assert load(path, dtype=want).feed["x"].dtype == want


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": X}, r"has arrays y; the model takes x"),
        ({"x": X, "y": X}, r"has arrays x, y; the model takes x"),
        ({}, r"has arrays \(none\)"),
        ({"x": X[0]}, r"x is of shape \[4\]; the model takes \[batch, 4\]"),
        ({"x": X[:, :3]}, r"x is of shape \[10, 3\]; the model takes \[batch, 4\]"),
        ({"x": X[:0]}, r"x is empty"),
        ({"x": X.astype(np.float64)}, r"x is float64; the model takes float32"),
        ({"x": X.astype(np.int64)}, r"x is int64; the model takes float32"),
        ({"x": X.astype(str)}, r"the model takes float32"),
        ({"x": X, "labels": np.zeros(9, int)}, r"x has 10 items and labels 9"),
        ({"x": X, "labels": np.zeros((10, 2))}, r"labels are float64 of shape \[10, 2\]"),
        ({"x": X, "labels": np.array(["a"] * 10)}, r"labels are <U1"),
        ({"x": X, "labels": np.full(10, np.nan)}, r"not finite"),
        ({"x": X, "labels": np.arange(10)}, r"labels go from 0 to 9; the model has 3 classes"),
        ({"x": X, "labels": np.full(10, -1)}, r"labels go from -1"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message) as caught:
        load(path)
    assert "\n" not in caught.value.message


def test_labels_need_one_row_an_item(path: Path) -> None:
    np.savez(path, x=X, labels=np.zeros(10, int))
    with pytest.raises(UsageError, match="of rank 3"):
        load(path, output=TensorInfo("y", "float32", ("batch", "sequence", 3)))


def test_rows_that_do_not_suit_the_labels_are_refused(path: Path) -> None:
    unknown = TensorInfo("y", "float32", None)
    rows = np.zeros((10, 1), np.float32)
    np.savez(path, x=X, labels=np.zeros(10, int))
    classes = load(path, output=unknown).evaluation
    np.savez(path, x=X, labels=np.zeros(10))
    ratings = load(path, output=unknown).evaluation
    assert classes is not None
    assert ratings is not None
    with pytest.raises(UsageError, match="one number an item"):
        classes.predict(rows, rows)
    with pytest.raises(UsageError, match="5 numbers an item"):
        ratings.predict(np.zeros((10, 5), np.float32), rows)


def test_files_that_are_no_npz_are_named(path: Path, tmp_path: Path) -> None:
    np.savez(path, x=X)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="can't read"):
            load(path)
    with pytest.raises(UsageError, match="can't read"):
        load(tmp_path / "absent.npz")
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(UsageError, match="one array"):
        load(path)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(UsageError, match="can't read"):
        load(path)


def test_an_input_called_labels_is_an_input(path: Path) -> None:
    np.savez(path, labels=X)
    signature = Signature((TensorInfo("labels", "float32", ("batch", 4)),), (LOGITS,))
    workload = npz.load(WorkloadRequest(str(path), signature, Shape(1, 1), {}, 0))
    assert workload.evaluation is None
    assert workload.feed["labels"].shape == (10, 4)
