"""The sentiment probe: its split, its fit, and its score on the real model."""

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
from unlag.model.workload import Shape
from unlag.workloads import sentiment


def test_the_probe_tells_the_real_models_vectors_apart(tmp_path: Path) -> None:
    onnx.save(build_bert(assets.minilm_checkpoint()), tmp_path / "standard.onnx")
    evaluation = sentiment.load(encoder_request(asked=Shape(16, 128))).evaluation
    assert evaluation is not None
    rows = rows_of(onnxruntime.InferenceSession(tmp_path / "standard.onnx"), evaluation)
    assert evaluation.score(evaluation.predict(rows, rows), evaluation.labels) == pytest.approx(81.0, abs=0.5)
    shuffled = np.random.default_rng(0).permutation(rows)
    assert evaluation.score(evaluation.predict(shuffled, rows), evaluation.labels) < 60


def test_the_split_is_the_same_every_time_and_disjoint() -> None:
    texts, positive = sentiment.read_split()
    again, _ = sentiment.read_split()
    assert texts == again
    assert len(texts) == len(positive) == sentiment.TRAIN_ITEMS + sentiment.TEST_ITEMS
    assert 0.4 < positive.mean() < 0.6
    overlap = set(texts[: sentiment.TRAIN_ITEMS]) & set(texts[sentiment.TRAIN_ITEMS :])
    assert len(overlap) < 5  # a few reviews share a sentence


def test_labels_are_for_the_test_items_and_feeds_for_all() -> None:
    evaluation = sentiment.load(encoder_request()).evaluation
    assert evaluation is not None
    assert len(evaluation.labels) == sentiment.TEST_ITEMS
    assert len(evaluation.feeds) == sentiment.TRAIN_ITEMS + sentiment.TEST_ITEMS


def test_the_probe_is_the_minimum_of_its_loss() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(200, 5))
    labels = (vectors @ rng.normal(size=5) + 0.3 + rng.normal(size=200) > 0).astype(np.float64)
    found = sentiment.fit_probe(vectors, labels)
    probability = 1 / (1 + np.exp(-(vectors @ found[:-1] + found[-1])))
    gradient = vectors.T @ (probability - labels) + sentiment.PENALTY * found[:-1]
    assert np.abs(gradient).max() < 1e-2
    assert abs((probability - labels).sum()) < 1e-2


def test_a_file_with_lost_snippets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "snippets.txt"
    short.write_text("1\t2.5\tGood.\n", "utf-8")
    monkeypatch.setattr(assets, "movie_snippets", lambda: short)
    with pytest.raises(UsageError, match="1 snippets"):
        sentiment.load(encoder_request())
