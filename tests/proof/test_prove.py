"""The court: which copies are measured, in which batches, and which knots are seen. Times are scripted by a game."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from measure.scripted import linear
from proof.remedies import nothing, set_option, suspect
from report import records
from unlag.causes.contract import Finding
from unlag.measure.accuracy import Scored
from unlag.measure.compare import Compared
from unlag.measure.contest import ContestResult, Sample, Turn
from unlag.measure.progress import Progress, silent
from unlag.measure.schedule import Protocol
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Evaluation, Feed, Rows
from unlag.proof import prove as court_module
from unlag.proof.copies import Suspect
from unlag.proof.prove import Proofs, prove, suspects_of
from unlag.proof.reconcile import knots_of, reconcile, report_causes

VARIANT_MS = records.comparison().variant.latency_ms.median
STANDARD_MS = records.comparison().standard.latency_ms.median
FOUND = Finding("found", "1 of 1")

Game = Callable[[frozenset[str]], float]
"""Milliseconds won by removing these causes."""


@dataclass
class StubBench:
    """Contests whose times are those of the game; a cause that was removed has left an option of its name."""

    case: Case
    game: Game
    points: Game = lambda _: 0.0
    evaluation: Evaluation | None = None
    contests: list[list[str]] = field(default_factory=list)
    progress: Progress = silent

    @property
    def protocol(self) -> Protocol:
        return Protocol()

    @property
    def workload(self) -> SimpleNamespace:
        return SimpleNamespace(agreement=(), feed={}, evaluation=self.evaluation)

    def within(self, begin: float, end: float) -> Self:
        assert 0 <= begin <= end <= 1
        return self

    @contextlib.contextmanager
    def contest(self, contenders: Mapping[str, Variant], protocol: Protocol | None = None) -> Iterator[StubContest]:
        del protocol
        self.contests.append(list(contenders))
        yield StubContest(self, dict(contenders))


@dataclass
class StubContest:
    bench: StubBench
    contenders: dict[str, Variant]

    def _removed(self, name: str) -> frozenset[str]:
        return frozenset(key.removeprefix("config.") for key in self.contenders[name].options)

    def answers(self, name: str, feeds: Sequence[Feed]) -> list[Feed]:
        del name
        return [{"y": np.ones((1, 2))} for _ in feeds]

    def retire(self, name: str) -> None:
        assert name in self.contenders

    def evaluate(self, name: str, feeds: Sequence[Feed], reduction: str) -> Rows:
        del feeds, reduction
        right = 80 + self.bench.points(self._removed(name))
        return (np.arange(100) < right).astype(np.float32)[:, None]

    def measure(self, decided: object = None) -> Any:
        del decided
        wobble = 1 + 1e-4 * np.arange(-2, 3)

        def medians_ms(name: str) -> np.ndarray:
            if self.contenders[name] == self.bench.case.standard:
                return STANDARD_MS * wobble
            return (VARIANT_MS - self.bench.game(self._removed(name))) * wobble[::-1]

        return SimpleNamespace(medians_ms=medians_ms)


@pytest.fixture
def case(tmp_path) -> Case:
    return Case(standard=linear(tmp_path / "standard.onnx"), variant=linear(tmp_path / "variant.onnx"))


def suspects_for(names: str, **options: object) -> list[Suspect]:
    return [suspect(name, set_option(f"config.{name}", "1"), **options) for name in names]


def proven(case: Case, game: Game, suspects: list[Suspect], **options: Any) -> tuple[Proofs, StubBench]:
    bench = StubBench(case, game, **options)
    scores = {}
    if bench.evaluation is not None:
        standard, variant = (np.arange(100) < right for right in (95, 80))
        rows = {"standard": standard.astype(np.float32)[:, None], "variant": variant.astype(np.float32)[:, None]}
        scores = {name: Scored(bench.evaluation, own, rows["standard"]) for name, own in rows.items()}
    return prove(bench, Compared(records.comparison(), scores), suspects), bench  # type: ignore[arg-type]


def additive(**worth: float) -> Game:
    return lambda removed: sum(worth.get(name, 0.0) for name in removed)


def costs_of(proofs: Proofs) -> dict[str, float]:
    reports = report_causes([(s.cause, FOUND) for s in proofs.suspects], proofs, records.comparison())
    return {report.id: report.cost_ms.estimate for report in reports if report.cost_ms is not None}


def test_nobody_is_tried_without_suspects(case):
    proofs, bench = proven(case, additive(), [])
    assert proofs.times is None
    assert not bench.contests


@pytest.mark.parametrize("names", ["a", "ab", "abcde"])
def test_causes_that_add_up_cost_what_they_are_worth(case, names):
    worth = {name: 5.0 + position for position, name in enumerate(names)}
    proofs, bench = proven(case, additive(**worth), suspects_for(names))
    assert costs_of(proofs) == pytest.approx(worth, rel=1e-3)
    assert not proofs.knot
    timed = [
        name for contest in bench.contests[1:] for name in contest if name.startswith("with") and "all" not in name
    ]
    assert len(timed) == len(set(timed)), "something was measured twice"
    reports = report_causes([(s.cause, FOUND) for s in proofs.suspects], proofs, records.comparison())
    parts = reconcile(proofs, reports)
    assert parts.explained_ms.estimate == pytest.approx(sum(worth.values()), rel=1e-3)
    assert parts.interaction_ms.estimate == pytest.approx(0.0, abs=0.01)
    assert parts.unexplained_ms.estimate == pytest.approx(VARIANT_MS - STANDARD_MS - sum(worth.values()), rel=1e-3)


def test_batches_fit_into_memory_and_all_have_the_anchors(case, monkeypatch):
    monkeypatch.setattr(court_module, "contenders_at_once", lambda _: 4)
    proofs, bench = proven(case, additive(a=5, b=6, c=7, d=8), suspects_for("abcd"))
    batches = bench.contests[1:]
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 3], "8 copies: 1 beside three anchors, then 2 beside two"
    assert batches[0][0] == "standard"
    for batch in batches[1:]:
        assert batch[:2] == ["variant", "without all causes"], "the standard is timed once"
    assert costs_of(proofs) == pytest.approx({"a": 5, "b": 6, "c": 7, "d": 8}, rel=1e-3)


def test_remedies_that_do_nothing_leave_no_trace_in_the_sum(case):
    proofs, _ = proven(case, additive(a=5.0), [*suspects_for("a"), suspect("idle", nothing)])
    assert [s.id for s in proofs.suspects] == ["a"]
    assert [rejection.cause for rejection in proofs.rejections] == ["idle"]
    assert costs_of(proofs) == pytest.approx({"a": 5.0}, rel=1e-3)


def test_no_honest_remedy_means_no_contest(case):
    proofs, bench = proven(case, additive(), [suspect("idle", nothing)])
    assert proofs.times is None
    assert len(bench.contests) <= 1
    assert reconcile(proofs, ()) is None


def overlapping(*names: str) -> Game:
    """20 ms that removing any one of them wins, and 4 ms for everything else each."""
    return lambda removed: (20.0 if removed & set(names) else 0.0) + 4.0 * len(removed - set(names))


def test_a_knot_of_three_is_measured_in_pairs(case):
    proofs, _ = proven(case, overlapping("a", "b", "c"), suspects_for("abcd"))
    assert proofs.knot == {"a", "b", "c"}
    costs = costs_of(proofs)
    assert costs == pytest.approx({"a": 20 / 3, "b": 20 / 3, "c": 20 / 3, "d": 4.0}, rel=1e-2)
    reports = report_causes([(s.cause, FOUND) for s in proofs.suspects], proofs, records.comparison())
    assert {knot.causes for knot in knots_of(proofs, reports)} == {("a", "b"), ("a", "c"), ("b", "c")}


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde"])
def test_a_knot_of_two_is_said_however_many_others_there_are(case, names):
    proofs, _ = proven(case, overlapping("a", "b"), suspects_for(names))
    assert proofs.knot == {"a", "b"}
    assert costs_of(proofs)["a"] == pytest.approx(10.0, rel=1e-2)
    reports = report_causes([(s.cause, FOUND) for s in proofs.suspects], proofs, records.comparison())
    (knot,) = knots_of(proofs, reports)
    assert knot.causes == ("a", "b")
    assert knot.sentence.startswith("either remedy alone wins most of it (100% of the 20.0 ms")


def labelled() -> Evaluation:
    return Evaluation(
        "accuracy", ({},), "none", np.ones(100), lambda rows, _: rows[:, 0].astype(np.float64),
        lambda predictions, labels: 100 * float(np.mean(predictions == labels)),
    )  # fmt: skip


def test_accuracy_causes_are_scored_first_in_and_last_out(case):
    suspects = (
        suspects_for("a", affects=frozenset({"accuracy"}))
        + suspects_for("b")
        + suspects_for("c", affects=frozenset({"accuracy"}))
    )
    proofs, bench = proven(case, additive(b=5.0), suspects, points=additive(a=4.0, c=9.0), evaluation=labelled())
    everything = frozenset("abc")
    wanted = {frozenset(), everything, frozenset("a"), frozenset("c"), everything - {"a"}, everything - {"c"}}
    assert set(proofs.scores) == wanted
    scored = [names for names in bench.contests if len(names) == 1]
    assert len(scored) == len(wanted) - 1, "the comparison has scored the variant"
    reports = report_causes([(s.cause, FOUND) for s in proofs.suspects], proofs, records.comparison())
    assert [(r.id, r.status) for r in reports] == [("b", "proven"), ("c", "proven"), ("a", "proven")]
    points = {r.id: r.accuracy_cost.estimate for r in reports if r.accuracy_cost is not None}
    assert points == pytest.approx({"a": 4.0, "c": 9.0})


def test_without_labels_nothing_is_scored(case):
    proofs, _ = proven(case, additive(), suspects_for("a", affects=frozenset({"accuracy"})))
    assert not proofs.scores
    assert proofs.standard_score is None
    assert (
        report_causes([(s.cause, FOUND) for s in proofs.suspects], proofs, records.comparison())[0].status
        == "suspected"
    )


def test_the_variants_and_standards_files_are_untouched(case):
    before = [Path(variant.path).read_bytes() for variant in (case.standard, case.variant)]
    proven(case, additive(a=1.0), suspects_for("a"))
    assert [Path(variant.path).read_bytes() for variant in (case.standard, case.variant)] == before


def test_advice_is_no_suspect():
    advice, cure = suspect("advice", nothing, "ADVICE"), suspect("cure", nothing)
    assert [s.id for s in suspects_of([(advice.cause, FOUND), (cure.cause, FOUND)])] == ["cure"]


def result_of(**medians_ms: list[float]) -> ContestResult:
    samples = {
        name: Sample((), tuple(Turn(r, 0, (round(ms * 1e6),), None) for r, ms in enumerate(times)), 0)
        for name, times in medians_ms.items()
    }
    return ContestResult(samples, tuple(range(len(next(iter(medians_ms.values()))))), ())


@pytest.mark.parametrize(
    ("copy", "clear"),
    [
        ([8.0, 8.1, 8.0, 8.1, 8.0], True),  # apart from the variant
        ([10.0, 10.01, 9.99, 10.0, 10.01], True),  # the same
        ([9.0, 11.0, 10.5, 9.2, 10.9], False),
    ],
)
def test_copies_are_timed_until_they_are_told_apart_or_the_same(copy, clear):
    rounds = {"variant": [10.0, 10.01, 10.0, 9.99, 10.0], "repaired": [5.0, 5.01, 5.0, 4.99, 5.0], "copy": copy}
    assert court_module._is_clear(result_of(**rounds), "variant", "repaired") is clear
