"""The roofline's ceilings: plausible, kept, and not kept where they were disturbed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planting import tiny_bert
from unlag.errors import ContenderError, Missing
from unlag.measure import ceilings
from unlag.measure.bench import Bench, open_bench
from unlag.measure.ceilings import Ceilings, ceilings_of
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    monkeypatch.setenv("UNLAG_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_bert().SerializeToString())
    variant = Variant("onnxruntime", str(path))
    return open_bench(Case(standard=variant, variant=variant, threads=1), Shape(1, 8))


def test_they_are_measured_once_and_kept(bench, monkeypatch):
    monkeypatch.setattr(ceilings, "SIDE", 256)
    monkeypatch.setattr(ceilings, "STREAMED_ELEMENTS", 1 << 20)
    monkeypatch.setattr(ceilings, "ROUNDS", 1)
    measured = ceilings_of(bench)
    assert isinstance(measured, Ceilings)
    assert measured.flop_per_s > 1e8
    assert measured.bytes_per_s > 1e7
    assert measured.flop_per_s > measured.bytes_per_s / 4, "no machine computes less than it moves"


@pytest.mark.parametrize("quiet", [True, False])
def test_only_undisturbed_ones_are_kept(bench, monkeypatch, quiet):
    answers = iter([(Ceilings(1.0, 2.0), quiet), (Ceilings(3.0, 4.0), True)])
    monkeypatch.setattr(ceilings, "_measure", lambda _bench: next(answers))
    first, second = ceilings_of(bench), ceilings_of(bench)
    assert first == Ceilings(1.0, 2.0)
    assert second == (first if quiet else Ceilings(3.0, 4.0))


def test_other_threads_have_other_ceilings(bench, monkeypatch):
    monkeypatch.setattr(ceilings, "_measure", lambda b: (Ceilings(float(b.threads), 1.0), True))
    other = msgspec.structs.replace(bench.case, threads=2)
    assert ceilings_of(bench) != ceilings_of(replace(bench, case=other, threads=2))


def test_a_failure_is_missing_with_its_reason(bench, monkeypatch):
    def fail(_bench):
        raise ContenderError("product was killed")

    monkeypatch.setattr(ceilings, "_measure", fail)
    missing = ceilings_of(bench)
    assert isinstance(missing, Missing)
    assert "product was killed" in missing.reason
