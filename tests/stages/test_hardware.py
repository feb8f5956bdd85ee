"""Stage 3: settings that could matter, a quick look at them, and a search among those that promise something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from stages.stub_workshop import StubWorkshop, pm, trial
from unlag.errors import Missing
from unlag.model.variant import Variant
from unlag.observe.inside_session import InsideSession
from unlag.stages import hardware
from unlag.stages.fixed import Decision, Kept, Rejected
from unlag.stages.goal import Goal
from unlag.stages.hardware import (
    CPU_SETTINGS,
    fit_hardware,
    options_of,
    passes_to_try,
    settings_to_try,
)
from unlag.stages.plan import Plan
from unlag.stages.screen import Screened

NOTHING = Decision((), ())
WIDE = InsideSession(("ConstantFolding", "Level1_RuleBasedTransformer", "BiasGeluFusion", "SkipLayerNormFusion"), 3)


UNKNOWN = Missing("virtual")


def bench_of(threads: int = 2, asked: int | None = None, physical: int | Missing = UNKNOWN):
    cpu = SimpleNamespace(physical_cores=physical, siblings=Missing("virtual"))
    return SimpleNamespace(
        threads=threads,
        cores=tuple(range(threads)),
        case=SimpleNamespace(threads=asked),
        host=SimpleNamespace(cpu=cpu),
        within=lambda *_: None,
    )


@dataclass
class Stub(StubWorkshop):
    """A workshop whose model has these options."""

    options: Mapping[str, str] = ()  # type: ignore[assignment]

    def make(self, plan: Plan) -> Variant:
        return Variant("onnxruntime", "m.onnx", {**dict(self.options), **plan.options})


@dataclass
class Fitted:
    plan: Plan
    kept: dict[str, str]
    rejected: dict[str, str]
    looked_at: Mapping[str, Mapping[str, str]]
    workshop: Stub


@pytest.fixture
def fit(monkeypatch):
    monkeypatch.setattr(hardware, "read_nodes", lambda: ((0, 1),))

    def run(
        screened: Screened,
        trials: Mapping[str, Any],
        inside: InsideSession = WIDE,
        shapes: tuple[Plan, Decision] | None = None,
        **rules: Any,
    ) -> Fitted:
        seen: list[Mapping[str, Mapping[str, str]]] = []

        def screen(_workshop, _plan, settings) -> Screened:
            seen.append(settings)
            return screened

        monkeypatch.setattr(hardware, "fix_shapes", lambda *_: shapes or (Plan(), NOTHING))
        monkeypatch.setattr(hardware, "look_inside", lambda *_: inside)
        monkeypatch.setattr(hardware, "screen", screen)
        workshop = Stub(trials, bench=bench_of(), **rules)
        plan, decision = fit_hardware(workshop, Plan(), Goal())
        kept = {kept.remedy: kept.reason for kept in decision.kept}
        rejected = {rejected.remedy: rejected.reason for rejected in decision.rejected}
        return Fitted(plan, kept, rejected, seen[0], workshop)

    return run


def test_only_what_promises_something_is_searched(fit):
    found = fit(Screened({"arena=off": pm(0.95), "spinning=off": pm(1.3)}), {"arena=off": trial(0.94)})
    ((what, _, tried),) = found.workshop.searches
    assert what == "hardware"
    assert set(tried) == {"arena=off"}
    assert found.plan.options == {"arena": "off"}
    assert set(found.kept) == {"arena=off"}
    assert found.rejected["spinning=off"].startswith("no gain in a quick look: +30.0 % time")


def test_nothing_promising_nothing_searched(fit):
    found = fit(Screened({"arena=off": pm(0.995)}), {})
    assert not found.workshop.searches
    assert (found.plan, found.kept) == (Plan(), {})


def test_settings_are_not_judged_beside_a_busy_core(fit):
    """One thread looks like a gain there, and isn't one when the machine is quiet again."""
    found = fit(Screened({"threads=1": pm(0.6)}, (), ("threads=1",)), {})
    assert not found.workshop.searches
    assert "other processes ran" in found.rejected["threads=1"]
    busy_later = fit(Screened({"threads=1": pm(0.6)}), {"threads=1": trial(0.6)}, quiet=False)
    assert not busy_later.kept
    assert "other processes ran" in busy_later.rejected["threads=1"]


def test_passes_that_promise_something_are_switched_off_one_two_and_three_together(fit):
    names = [f"disable={name}" for name in ("A", "B", "C", "D")]
    inside = InsideSession(("A", "B", "C", "D"), 1)
    screened = Screened(dict(zip(names, (pm(0.9), pm(0.95), pm(0.8), pm(0.98)), strict=True)))
    trials = {"disable=C": trial(0.8), "disable=C+A": trial(0.7), "disable=C+A+B": trial(0.75)}
    found = fit(screened, trials, inside)
    ((what, _, tried),) = found.workshop.searches
    assert what == "passes"
    assert {name: plan.options for name, plan in tried.items()} == {
        "disable=C": {"disable": "C"},
        "disable=C+A": {"disable": "C+A"},
        "disable=C+A+B": {"disable": "C+A+B"},
    }
    assert found.plan.options == {"disable": "C+A"}
    assert set(found.kept) == {"disable=C+A"}
    assert "disable=C+A is as good or better" in found.rejected["disable=C"]


def test_passes_that_are_off_already_stay_off(fit):
    screened = Screened({"disable=X+BiasGeluFusion": pm(0.9), "disable=X+SkipLayerNormFusion": pm(0.95)})
    trials = {"disable=X+BiasGeluFusion+SkipLayerNormFusion": trial(0.8)}
    found = fit(screened, trials, options={"disable": "X"})
    assert found.looked_at["disable=X+BiasGeluFusion"] == {"disable": "X+BiasGeluFusion"}
    assert found.plan.options == {"disable": "X+BiasGeluFusion+SkipLayerNormFusion"}


def test_a_pass_whose_loss_costs_accuracy_stays_on(fit):
    screened = Screened({"disable=BiasGeluFusion": pm(0.9)})
    found = fit(screened, {"disable=BiasGeluFusion": trial(0.9, loss=3.0, change=-3.0)})
    assert found.plan == Plan()
    assert "outside the budget" in found.rejected["disable=BiasGeluFusion"]


def test_settings_are_searched_on_top_of_what_was_kept_before(fit):
    shapes = Plan(remedies=("fix_dimensions",)), Decision((Kept("fix_dimensions", "x"),), (Rejected("y", "z"),))
    screened = Screened({"disable=BiasGeluFusion": pm(0.9), "arena=off": pm(0.9)})
    trials = {"disable=BiasGeluFusion": trial(0.9), "arena=off": trial(0.9)}
    found = fit(screened, trials, shapes=shapes)
    assert [what for what, _, _ in found.workshop.searches] == ["passes", "hardware"]
    assert found.plan == Plan("as_is", ("fix_dimensions",), {"disable": "BiasGeluFusion", "arena": "off"})
    assert list(found.kept) == ["fix_dimensions", "disable=BiasGeluFusion", "arena=off"]
    assert found.rejected["y"] == "z"


def settings(bench, inside=WIDE, objective="latency"):
    tried, ruled_out = settings_to_try(bench, inside, Goal(objective=objective))
    return tried, {rejected.remedy: rejected.reason for rejected in ruled_out}


@pytest.mark.parametrize(
    ("threads", "physical", "counts"),
    [
        (1, 1, []),
        (2, 2, [1]),
        (4, 2, [1, 2, 3]),
        (16, 8, [1, 2, 4, 8, 12]),
        (6, Missing("virtual"), [1, 2, 4]),
    ],
)
def test_fewer_threads_are_tried_in_doublings(threads, physical, counts):
    tried, _ = settings(bench_of(threads, physical=physical))
    assert [name for name in tried if name.startswith("threads=")] == [f"threads={count}" for count in counts]


def test_threads_that_the_user_asked_for_are_left_alone():
    assert not [name for name in settings(bench_of(4, asked=4))[0] if name.startswith("threads")]


def test_for_throughput_replicas_decide_how_many_threads_there_are():
    assert not [name for name in settings(bench_of(4), objective="throughput")[0] if name.startswith("threads")]


def test_with_one_thread_nobody_waits_for_others():
    tried, ruled_out = settings(bench_of(1))
    assert {"spinning=off", "dynamic block", "operators side by side"} <= set(ruled_out)
    assert not {"spinning=off", "dynamic block", "operators side by side"} & set(tried)
    assert "arena=off" in tried


@pytest.mark.parametrize(("width", "tried"), [(1, False), (2, True), (Missing("no graph"), False)])
def test_operators_run_side_by_side_only_where_the_graph_is_wide(width, tried):
    found, ruled_out = settings(bench_of(), InsideSession((), width))
    assert ("operators side by side" in found) == tried
    if isinstance(width, Missing):
        assert "no graph" in ruled_out["operators side by side"]


@pytest.mark.parametrize(
    ("passes", "tried"), [((), False), (("NchwcTransformer",), True), (Missing("another runtime"), True)]
)
def test_the_level_below_is_tried_only_where_the_highest_one_does_something(passes, tried):
    assert ("optimization=extended" in settings(bench_of(), InsideSession(passes, 1))[0]) == tried


def test_one_node_needs_no_pinning(monkeypatch):
    monkeypatch.setattr(hardware, "read_nodes", lambda: ((0, 1, 2, 3), (4, 5)))
    assert "1 NUMA node: no core is nearer" in settings(bench_of(4))[1]["threads on one NUMA node"]
    monkeypatch.setattr(hardware, "read_nodes", lambda: ())
    assert "no NUMA nodes are known" in settings(bench_of(4))[1]["threads on one NUMA node"]


def test_threads_may_stay_on_one_of_several_nodes(monkeypatch):
    monkeypatch.setattr(hardware, "read_nodes", lambda: ((0, 2), (1, 3, 5)))
    tried, _ = settings(bench_of(6))
    ((name, options),) = [(name, options) for name, options in tried.items() if "affinities" in name]
    assert options == {"threads": "3", "config.session.intra_op_thread_affinities": "4;6"}
    assert options_of(name) == options


def test_passes_that_only_take_work_away_are_not_tried():
    assert passes_to_try(WIDE, {}) == {
        "disable=BiasGeluFusion": {"disable": "BiasGeluFusion"},
        "disable=SkipLayerNormFusion": {"disable": "SkipLayerNormFusion"},
    }
    assert not passes_to_try(InsideSession(Missing("another runtime"), 1), {})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *CPU_SETTINGS.items(),
        ("threads=3", {"threads": "3"}),
        ("disable=A+B", {"disable": "A+B"}),
        ("rebuilt from the standard", {}),
        ("dynamic_int8", {}),
        ("", {}),
    ],
)
def test_a_setting_is_known_by_its_name(name, options):
    assert options_of(name) == options
