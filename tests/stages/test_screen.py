"""A quick look at settings: real contests, as short as they may be."""

from __future__ import annotations

import numpy as np
import pytest

from measure.scripted import hurry, in_process, linear
from stages.stub_workshop import pm
from unlag.measure.bench import open_bench
from unlag.measure.compare import Compared
from unlag.model.case import Case
from unlag.model.workload import Shape
from unlag.stages import search as search_module
from unlag.stages.fixed import Rejected
from unlag.stages.journal import Journal
from unlag.stages.plan import Plan
from unlag.stages.screen import NOT_QUIET, ROUNDS, TURN_MS, Screened, screen
from unlag.stages.search import Workshop

__all__ = ["in_process"]  # a fixture

SETTINGS = {"arena=off": {"arena": "off"}, "spinning=off": {"spinning": "off"}, "nonsense": {"optimization": "most"}}


@pytest.fixture
def workshop(tmp_path, monkeypatch, in_process) -> Workshop:
    assert not in_process.alive
    hurry(monkeypatch)
    monkeypatch.setattr(search_module, "contenders_at_once", lambda *_: 8)
    standard = linear(tmp_path / "standard.onnx", np.ones((4, 3)))
    bench = open_bench(Case(standard=standard, variant=standard, shapes=(Shape(1, 4),)), Shape(1, 4))
    (tmp_path / "plans").mkdir()
    return Workshop(bench, Compared(None, {}), tmp_path / "plans", journal=Journal(tmp_path / "journal"))


def test_settings_are_timed_beside_the_model_as_it_is(workshop, in_process):
    in_process.started.clear()
    seen = screen(workshop, Plan(), SETTINGS)
    assert set(seen.ratios) == {"arena=off", "spinning=off"}
    assert seen.failed[0].remedy == "nonsense"
    assert seen.failed[0].reason.startswith("it does not run: ")
    assert sorted(in_process.started) == sorted(["current", *SETTINGS]), "each starts once"
    assert not in_process.alive
    assert not seen.unclear


def test_a_look_is_short(workshop, monkeypatch):
    protocols = []
    contest = type(workshop.bench).contest

    def noted(bench, contenders, protocol=None):
        protocols.append(protocol)
        return contest(bench, contenders, protocol)

    monkeypatch.setattr(type(workshop.bench), "contest", noted)
    screen(workshop, Plan(), {"arena=off": {"arena": "off"}})
    (rules,) = protocols
    assert (rules.rounds, rules.max_rounds, rules.launches) == (ROUNDS, 2 * ROUNDS, 1)
    assert rules.min_turn_ms <= TURN_MS


def test_only_as_many_race_at_once_as_fit_into_memory(workshop, in_process):
    workshop._at_once = 2
    in_process.started.clear()
    assert set(screen(workshop, Plan(), SETTINGS).ratios) == {"arena=off", "spinning=off"}
    assert in_process.started.count("current") == 3, "each group has the model as it is beside it"


def test_a_resumed_look_measures_nothing_again(workshop, in_process):
    first = screen(workshop, Plan(), SETTINGS)
    in_process.started.clear()
    assert screen(workshop, Plan(), SETTINGS) == first
    assert not in_process.started
    screen(workshop, Plan(), {"arena=off": {"arena": "off"}})
    assert in_process.started, "other settings are another step"


def test_where_somebody_else_works_nothing_can_be_told(workshop, monkeypatch):
    monkeypatch.setattr("unlag.measure.contest.disturbance", lambda *_: "somebody else")
    seen = screen(workshop, Plan(), {"arena=off": {"arena": "off"}})
    assert seen.unclear == ("arena=off",)


def test_no_settings_no_contest(workshop, in_process):
    in_process.started.clear()
    assert screen(workshop, Plan(), {}) == Screened({})
    assert not in_process.started


def test_the_promising_ones_come_best_first_and_the_others_say_why_not():
    seen = Screened(
        {"a": pm(0.95), "b": pm(0.9, 0.3), "c": pm(0.995), "d": pm(0.5), "e": pm(1.2)},
        (Rejected("f", "it does not run"),),
        ("d",),
    )
    assert seen.promising == ("b", "a")
    reasons = {rejected.remedy: rejected.reason for rejected in seen.rejected}
    assert set(reasons) == {"c", "d", "e", "f"}
    assert reasons["d"] == NOT_QUIET
    assert reasons["e"] == "no gain in a quick look: +20.0 % time (+19.0 to +21.0)"


def test_session_options_need_no_file_of_their_own(workshop):
    plain, other = Plan(remedies=("x",)), Plan(remedies=("x",), options={"arena": "off"})
    workshop._built[search_module._key(plain)] = linear(workshop._folder / "plan0.onnx")
    made = workshop.make(other)
    assert made.path == workshop.make(plain).path
    assert made.options == {"arena": "off"}
    workshop.discard([other])
    assert (workshop._folder / "plan0.onnx").exists(), "the same file with other options is still needed"
    workshop.discard([plain])
    assert not (workshop._folder / "plan0.onnx").exists()
