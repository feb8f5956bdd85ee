"""Which way to share the cores out is the best for each side, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from measure.scripted import fake
from report import records
from unlag.errors import ContenderError
from unlag.measure import bench as bench_module
from unlag.measure.bench import Bench, open_bench
from unlag.measure.throughput import Crew, CrewRate, RaceResult
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.stages import throughput as module
from unlag.stages import use
from unlag.stages.throughput import measure_throughput

RATES = {
    "standard, 1 × 4": 10.0, "standard, 2 × 2": 12.0, "standard, 4 × 1": 11.0,
    "fixed, 1 × 4": 20.0, "fixed, 2 × 2": 25.0, "fixed, 4 × 1": 30.0,
}  # fmt: skip


def bench_of(folder, cores: int = 4, **rules: Any) -> Bench:
    model = fake(folder)
    case = msgspec.structs.replace(Case(standard=model, variant=model, shapes=(Shape(3, 4),)), **rules)
    bench = open_bench(case, case.shapes[0])
    return Bench(case, bench.host, bench.workload, tuple(range(cores)), cores, bench.progress)


@pytest.fixture
def races(monkeypatch):
    """Scripted races; what was raced together is in the list."""
    raced: list[dict[str, Crew]] = []
    rates = dict(RATES)

    def race(crews: dict[str, Crew], _bench: Bench, _protocol: object) -> RaceResult:
        raced.append(dict(crews))
        found = {
            name: CrewRate((0.99 * rates[name], rates[name], 1.01 * rates[name]), crew.replicas * 1000, pinned=True)
            for name, crew in crews.items()
            if name in rates
        }
        failed = {name: "it crashed" for name in crews if name not in rates}
        return RaceResult(found, failed, 3, 0, quiet=True)

    monkeypatch.setattr(module, "race", race)
    return SimpleNamespace(raced=raced, rates=rates)


def compared(standard_bytes: int = 1000, fixed_bytes: int = 1000):
    return SimpleNamespace(
        standard=SimpleNamespace(peak_memory_bytes=standard_bytes),
        variant=SimpleNamespace(peak_memory_bytes=fixed_bytes),
    )


def test_both_sides_are_tried_in_the_same_ways_and_in_one_race(tmp_path, races):
    fixed = Variant("fake", "fixed.json")
    found = measure_throughput(bench_of(tmp_path), fixed, compared())
    ((crews),) = races.raced
    assert set(crews) == set(RATES)
    assert {(crew.replicas, crew.threads) for crew in crews.values()} == {(1, 4), (2, 2), (4, 1)}
    assert all((crew.variant is fixed) == name.startswith("fixed") for name, crew in crews.items())
    assert (found.replicas, found.threads, found.cores, found.batch) == (4, 1, 4, 3)
    assert [rate.rows_per_s.estimate for rate in found.standard] == pytest.approx([30, 36, 33])
    assert found.gain.estimate == pytest.approx(30 / 12), "each side at its best"
    assert [rate.memory_bytes for rate in found.fixed] == [1000, 2000, 4000]
    assert not found.refused


def test_of_two_ways_that_get_as_much_done_the_one_with_fewer_replicas_is_the_best(tmp_path, races):
    races.rates["fixed, 2 × 2"] = 29.5
    assert measure_throughput(bench_of(tmp_path), Variant("fake", "f"), compared()).replicas == 2
    races.rates["fixed, 2 × 2"] = 29.3
    assert measure_throughput(bench_of(tmp_path), Variant("fake", "f"), compared()).replicas == 4


def test_threads_that_the_user_allows_are_shared_out(tmp_path, races):
    found = measure_throughput(bench_of(tmp_path, threads=2), Variant("fake", "f"), compared())
    assert found is None, "no rates are scripted for these"
    assert {(crew.replicas, crew.threads) for crew in races.raced[0].values()} == {(1, 2), (2, 1)}


def test_what_does_not_fit_into_memory_is_refused(tmp_path, races, monkeypatch):
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: SimpleNamespace(available=6000))
    found = measure_throughput(bench_of(tmp_path), Variant("fake", "f"), compared(2000, 1000))
    reasons = {refused.remedy: refused.reason for refused in found.refused}
    assert set(reasons) == {"standard, 2 × 2", "standard, 4 × 1", "fixed, 4 × 1"}
    assert "GB of memory" in reasons["fixed, 4 × 1"]
    assert (found.replicas, found.threads) == (2, 2)
    assert all(sum(_bytes(name) * crew.replicas for name, crew in raced.items()) <= 3000 for raced in races.raced)
    assert found.gain.estimate == pytest.approx(25 / 10)
    assert found.gain.low < 0.98 * 2.5 < 1.02 * 2.5 < found.gain.high, "not in the same rounds: both intervals count"


def _bytes(name: str) -> int:
    return 2000 if name.startswith("standard") else 1000


def test_the_best_of_both_meet_where_they_did_not_race_together(tmp_path, races, monkeypatch):
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: SimpleNamespace(available=12000))
    found = measure_throughput(bench_of(tmp_path), Variant("fake", "f"), compared())
    assert len(races.raced) == 4
    assert set(races.raced[-1]) == {"standard, 2 × 2", "fixed, 4 × 1"}
    assert found.gain.estimate == pytest.approx(30 / 12)


def test_a_way_that_fails_is_refused_with_its_reason(tmp_path, races):
    del races.rates["fixed, 4 × 1"]
    found = measure_throughput(bench_of(tmp_path), Variant("fake", "f"), compared())
    assert (found.replicas, found.threads) == (2, 2)
    assert [(refused.remedy, refused.reason) for refused in found.refused] == [("fixed, 4 × 1", "it crashed")]


def test_real_processes_are_raced(tmp_path, monkeypatch):
    """Two sleeping replicas get twice as much done as one, for both sides."""
    monkeypatch.setattr("unlag.measure.throughput.disturbance", lambda *_: None)
    rules = {"min_turn_ms": 40.0, "min_runs": 4, "warmup_limit_s": 0.1, "rounds": 2, "max_rounds": 2}
    plain = bench_module.Protocol
    monkeypatch.setattr(bench_module, "Protocol", lambda **own: plain(**{**own, **rules}))
    bench = bench_of(tmp_path, 2, standard=fake(tmp_path, "slow", time_ms=20.0), rounds=2)
    found = measure_throughput(bench, fake(tmp_path, "fast", time_ms=10.0), compared())
    assert (found.replicas, found.threads) == (2, 1)
    assert 1.3 < found.gain.estimate < 3
    assert 1.3 < found.standard[1].rows_per_s.estimate / found.standard[0].rows_per_s.estimate < 3


def with_use(bench: Bench, variant: Variant):
    return use.with_use(bench, records.fix(), variant)


def test_rows_a_second_are_measured_only_where_they_are_the_objective(tmp_path, races):
    bench = bench_of(tmp_path)
    assert with_use(bench, bench.case.standard).throughput is None
    assert not races.raced
    bench = bench_of(tmp_path, objective="throughput")
    record = with_use(bench, bench.case.standard)
    assert record.throughput.replicas == 4
    assert record.notes == records.fix().notes


def test_where_the_standard_gets_more_done_the_report_begins_with_it(tmp_path, races):
    races.rates["standard, 1 × 4"] = 60.0
    bench = bench_of(tmp_path, objective="throughput")
    assert "the standard gets 2.00 times as many rows a second" in with_use(bench, bench.case.standard).notes[-1]


@pytest.mark.parametrize("fails", ["nothing fits", "a replica dies"])
def test_rows_a_second_that_can_not_be_measured_are_said(tmp_path, races, monkeypatch, fails):
    def dies(*_: object) -> None:
        raise ContenderError("fixed, 4 × 1, copy 2 was killed while it was measured: SIGKILL (out of memory?)")

    races.rates.clear()
    if fails == "a replica dies":
        monkeypatch.setattr(module, "race", dies)
    bench = bench_of(tmp_path, objective="throughput")
    record = with_use(bench, bench.case.standard)
    assert record.throughput is None
    assert record.notes[-1].startswith("rows a second could not be measured: ")
