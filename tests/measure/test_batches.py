"""The same rows in several kinds of batches, in turns in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from measure.scripted import fake
from unlag.errors import ContenderError
from unlag.measure import batches as module
from unlag.measure.batches import time_batches
from unlag.measure.bench import Bench, open_bench
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Feed, Shape
from unlag.runtimes.fake import Fault


def bench_of(standard: Variant) -> Bench:
    return open_bench(Case(standard=standard, variant=standard, shapes=(Shape(1, 4),)), Shape(1, 4))


def feeds(count: int) -> list[Feed]:
    return [{"x": np.ones((2, 4), np.float32)}] * count


def test_more_batches_take_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "disturbance", lambda *_: None)
    model = fake(tmp_path, time_ms=10.0)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    found = time_batches(bench_of(model), model, {"few": feeds(2), "many": feeds(6)}, 3)
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert found.quiet
    assert len(found.times_ms["few"]) == len(found.times_ms["many"]) == 3
    assert min(found.times_ms["few"]) >= 20
    assert 1.5 < min(found.times_ms["many"]) / min(found.times_ms["few"]) < 6


@pytest.mark.parametrize(
    ("reasons", "rounds", "quiet"), [([None] * 9, 2, True), (["x", None, None], 2, True), (["x"] * 4, 4, False)]
)
def test_disturbed_rounds_count_only_where_there_are_no_others(tmp_path, monkeypatch, reasons, rounds, quiet):
    said = iter(reasons)
    monkeypatch.setattr(module, "disturbance", lambda *_: next(said))
    model = fake(tmp_path, time_ms=0.1)
    found = time_batches(bench_of(model), model, {"only": feeds(1)}, 2)
    assert len(found.times_ms["only"]) == rounds
    assert found.quiet == quiet


def test_a_model_that_breaks_on_a_batch_is_said_and_ended(tmp_path):
    model: Any = fake(tmp_path, time_ms=0.1, fault=Fault("raise", at_run=2))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(ContenderError, match="the scripted fault"):
        time_batches(bench_of(model), model, {"only": feeds(3)}, 1)
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
