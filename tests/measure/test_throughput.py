"""Replicas beside each other: what they get done together, in turns with other ways to share the cores out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from measure.scripted import fake
from unlag.errors import ContenderError
from unlag.measure import exchange
from unlag.measure import throughput as module
from unlag.measure.bench import Bench, open_bench
from unlag.measure.schedule import Protocol
from unlag.measure.throughput import Crew, RaceResult, race
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.runtimes.fake import Fault

RULES = Protocol(rounds=3, max_rounds=6, launches=1, min_runs=4, min_turn_ms=40.0, warmup_limit_s=0.1, patience_s=60.0)


def bench_of(standard: Variant, **rules: Any) -> Bench:
    case = msgspec.structs.replace(Case(standard=standard, variant=standard, shapes=(Shape(1, 4),)), **rules)
    return open_bench(case, case.shapes[0])


class Recorded:
    """A worker's process that is none: it answers at once, and notes what is asked of it."""

    everyone: list[Recorded]
    late_ns = 0
    dies: str = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.ended = False
        self.opened: exchange.Open | None = None
        self.asked: list[exchange.Request] = []
        Recorded.everyone.append(self)

    def ask(self, request: exchange.Request, reply: type[Any], patience_s: float) -> Any:
        assert patience_s > 0
        assert not self.frozen
        assert not self.ended
        self.asked.append(request)
        own = self.name.split(", copy ")[0]
        awake = {p.name.split(", copy ")[0] for p in Recorded.everyone if not p.frozen and not p.ended}
        assert awake == {own}, "another crew's processes are awake"
        if isinstance(request, exchange.Open):
            self.opened = request
            if self.dies and self.dies in self.name:
                raise ContenderError(f"{self.name} was killed while it was measured: SIGKILL (out of memory?)")
        answers: dict[type, Any] = {
            exchange.Opened: lambda: exchange.Opened(None, 1.0, 1.0, pinned=True),  # type: ignore[arg-type]
            exchange.WarmedUp: lambda: exchange.WarmedUp(3, steady=True, typical_ms=1.0),
            exchange.TurnTaken: lambda: exchange.TurnTaken((1,), 0.0, 1),
            exchange.Worked: lambda: exchange.Worked(10, 100_000_000, self.late_ns, 0.0, 50_000_000),
        }
        return answers[reply]()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def recorded(monkeypatch) -> Iterator[type[Recorded]]:
    Recorded.everyone = []
    monkeypatch.setattr(module, "WorkerProcess", Recorded)
    monkeypatch.setattr(module, "disturbance", lambda *_: None)
    yield Recorded
    assert all(process.ended for process in Recorded.everyone)


def rates(result: RaceResult) -> dict[str, float]:
    return {name: max(rate.runs_per_s) for name, rate in result.crews.items()}


def test_two_replicas_that_do_not_compute_get_twice_as_much_done(tmp_path):
    """They sleep, so that one core is enough for any number of them."""
    model = fake(tmp_path, time_ms=10.0)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    result = race({"one": Crew(model, 1, 1), "two": Crew(model, 2, 1)}, bench_of(model), RULES)
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not result.failed
    found = rates(result)
    assert found["one"] <= 101
    assert 1.3 < found["two"] / found["one"] < 3
    assert result.crews["two"].memory_bytes > 1.5 * result.crews["one"].memory_bytes


def test_all_replicas_begin_at_one_moment_on_cores_of_their_own(tmp_path, recorded, monkeypatch):
    monkeypatch.setattr(module, "take_usage", lambda _: None)  # this machine may have fewer cores
    model = fake(tmp_path)
    bench = bench_of(model)
    race({"two": Crew(model, 2, 1)}, with_cores(bench, (0, 1, 2, 3)), RULES)
    first, second = recorded.everyone
    assert set(first.opened.cores) | set(second.opened.cores) == {0, 1, 2, 3}
    assert not set(first.opened.cores) & set(second.opened.cores)
    starts = [[r.start_ns for r in p.asked if isinstance(r, exchange.Work)] for p in recorded.everyone]
    assert starts[0] == starts[1]
    assert len(starts[0]) == RULES.rounds


def with_cores(bench: Bench, cores: tuple[int, ...]) -> Bench:
    return Bench(bench.case, bench.host, bench.workload, cores, len(cores), bench.progress)


def test_a_crew_opens_its_model_with_its_own_threads(tmp_path, recorded):
    model = Variant("onnxruntime", "m.onnx", {"threads": "8", "arena": "off"})
    race({"two": Crew(model, 2, 3)}, bench_of(fake(tmp_path)), RULES)
    assert {process.opened.threads for process in recorded.everyone} == {3}
    assert all(process.opened.variant.options == {"arena": "off"} for process in recorded.everyone)


@pytest.mark.usefixtures("recorded")
def test_rates_are_the_sum_of_all_replicas(tmp_path):
    model = fake(tmp_path)
    result = race({"one": Crew(model, 1, 1), "three": Crew(model, 3, 1)}, bench_of(model), RULES)
    assert result.crews["one"].runs_per_s == (100.0,) * RULES.rounds
    assert result.crews["three"].runs_per_s == (300.0,) * RULES.rounds
    assert [result.crews[name].memory_bytes for name in ("one", "three")] == [50_000_000, 150_000_000]
    assert (result.rounds, result.disturbed, result.quiet) == (RULES.rounds, 0, True)


def test_crews_take_turns_in_another_order_each_time(tmp_path, recorded):
    turns: list[str] = []
    model = fake(tmp_path)

    def noted(self: Recorded) -> None:
        self.frozen = False
        turns.append(self.name)

    recorded.thaw, plain = noted, recorded.thaw
    try:
        rules = msgspec.structs.replace(RULES, rounds=8)
        race({"a": Crew(model, 1, 1), "b": Crew(model, 1, 1)}, bench_of(model), rules)
    finally:
        recorded.thaw = plain
    pairs = [tuple(turns[k : k + 2]) for k in range(0, len(turns), 2)]
    assert all(len({name[0] for name in pair}) == 2 for pair in pairs)
    assert len(set(pairs)) == 2


@pytest.mark.usefixtures("recorded")
def test_disturbed_rounds_are_played_again_and_do_not_count(tmp_path, monkeypatch):
    reasons = iter(["somebody else", None, None, None, None])
    monkeypatch.setattr(module, "disturbance", lambda *_: next(reasons))
    result = race({"one": Crew(fake(tmp_path), 1, 1)}, bench_of(fake(tmp_path)), RULES)
    assert (result.rounds, result.disturbed, result.quiet) == (3, 1, True)


@pytest.mark.usefixtures("recorded")
def test_where_every_round_is_disturbed_they_count_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "disturbance", lambda *_: "somebody else")
    result = race({"one": Crew(fake(tmp_path), 1, 1)}, bench_of(fake(tmp_path)), RULES)
    assert (result.rounds, result.disturbed, result.quiet) == (6, 6, False)


def test_a_replica_that_begins_late_disturbs_the_round(tmp_path, recorded, monkeypatch):
    monkeypatch.setattr(recorded, "late_ns", 10_000_000)
    assert not race({"one": Crew(fake(tmp_path), 1, 1)}, bench_of(fake(tmp_path)), RULES).quiet


def test_a_crew_that_does_not_come_up_leaves_the_others_running(tmp_path, recorded, monkeypatch):
    monkeypatch.setattr(recorded, "dies", "four, copy 3")
    model = fake(tmp_path)
    result = race({"one": Crew(model, 1, 1), "four": Crew(model, 4, 1)}, bench_of(model), RULES)
    assert set(result.crews) == {"one"}
    assert "out of memory" in result.failed["four"]
    assert [process.ended for process in recorded.everyone] == [True] * 4


def test_a_model_that_can_not_be_opened_is_said(tmp_path):
    wrong = Variant("fake", str(tmp_path / "missing.json"))
    result = race({"one": Crew(wrong, 1, 1)}, bench_of(fake(tmp_path)), RULES)
    assert not result.crews
    assert "is not a script" in result.failed["one"]


def test_a_replica_that_dies_while_it_works_ends_the_race_and_all_processes(tmp_path: Path):
    model = fake(tmp_path, time_ms=1.0, fault=Fault("exit", at_run=30))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(ContenderError, match="crashed while it was measured"):
        race({"two": Crew(model, 2, 1)}, bench_of(model), RULES)
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
