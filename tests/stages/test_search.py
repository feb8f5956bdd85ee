"""A search: what is built, what does not race, and that nothing is scored twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from measure.scripted import hurry, in_process, linear
from report import records
from unlag.errors import UsageError
from unlag.measure.accuracy import score
from unlag.measure.bench import open_bench
from unlag.measure.compare import Compared
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.stages import search as search_module
from unlag.stages.journal import Journal
from unlag.stages.plan import Plan
from unlag.stages.search import Workshop

__all__ = ["in_process"]  # a fixture

WEIGHT = np.diag([1.0, 2.0, 3.0, 4.0]) + 0.1
BUILT = {
    "same": WEIGHT,
    "rounded": WEIGHT * (1 + 1e-6),
    "other": WEIGHT[:, ::-1].copy(),
    "nan": WEIGHT * np.nan,
    "wide": np.ones((4, 5)),
}
"""Models that a plan stands for here: its remedy is their name."""


@pytest.fixture
def workshop(tmp_path, monkeypatch, in_process):  # noqa: ARG001 - its workers live in this process
    """A workshop on a labelled workload, whose plans build tiny models."""
    hurry(monkeypatch, min_turn_ms=0.0, warmup_limit_s=0.0)
    items = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    standard = linear(tmp_path / "standard.onnx", WEIGHT)
    np.savez(tmp_path / "task.npz", x=items, labels=(items @ WEIGHT).argmax(axis=1))
    case = Case(standard=standard, variant=standard, workload=str(tmp_path / "task.npz"), rounds=2, max_rounds=2)
    bench = open_bench(case, Shape(1, 8))

    def build(plan: Plan, case: Case, path: Path, **_: object) -> Variant:
        name = plan.remedies[-1] if plan.remedies else "same"
        if name == "impossible":
            raise UsageError("the quantizer does not take it")
        return Variant("onnxruntime", linear(path, BUILT[name]).path, {**case.variant.options, **plan.options})

    monkeypatch.setattr(search_module, "build", build)
    monkeypatch.setattr(search_module, "contenders_at_once", lambda *_: 20)
    with bench.contest({"standard": standard}) as contest:
        scored = score(contest, "standard", bench.workload.evaluation)
    return Workshop(bench, Compared(records.comparison(), {"standard": scored}), tmp_path / "plans")


@pytest.fixture(autouse=True)
def plans_folder(tmp_path):
    (tmp_path / "plans").mkdir(exist_ok=True)


@pytest.fixture
def passes(monkeypatch) -> list[str]:
    """The names of contenders that went over the labelled data."""
    seen: list[str] = []

    def noted(contest, name, *rest):
        seen.append(name)
        return score(contest, name, *rest)

    monkeypatch.setattr(search_module, "score", noted)
    return seen


def plans(*names: str) -> dict[str, Plan]:
    return {name: Plan(remedies=(name,)) for name in names}


def test_a_search_tells_trials_from_what_could_not_race(workshop):
    tried = workshop.search("x", Plan(), plans("rounded", "other", "nan", "impossible", "wide", "same"))
    assert set(tried.trials) == {"rounded", "other"}
    reasons = {rejected.remedy: rejected.reason for rejected in tried.failed}
    assert reasons["impossible"] == "the quantizer does not take it"
    assert reasons["same"] == "nothing to change in this model"
    assert reasons["nan"].startswith("it does not run: the variant gives NaN")
    assert reasons["wide"].startswith("it does not run: output 'y' is")
    assert tried.current_cosine == pytest.approx(1.0)
    assert tried.current_loss == Interval(0.0, 0.0, 0.0)


def test_a_candidate_that_is_rejected_by_the_runtime_does_not_race(workshop):
    tried = workshop.search("x", Plan(), {"odd": Plan().with_options({"optimization": "nonsense"})})
    assert not tried.trials
    assert tried.failed[0].reason.startswith("it does not run: ")


def test_trials_have_time_accuracy_and_size_against_the_current_plan(workshop):
    tried = workshop.search("x", Plan(), plans("rounded", "other"))
    rounded, other = tried.trials["rounded"], tried.trials["other"]
    assert rounded.ratio.low <= rounded.ratio.estimate <= rounded.ratio.high
    assert rounded.change == Interval(0.0, 0.0, 0.0)
    assert rounded.loss == Interval(0.0, 0.0, 0.0)
    assert other.change.high < -30
    assert other.loss.estimate == pytest.approx(-other.change.estimate)
    assert other.cosine < 0.9 < rounded.cosine
    assert rounded.size_bytes == Path(workshop.make(rounded.plan).path).stat().st_size
    assert rounded.plan.remedies == ("rounded",)


def test_nothing_is_scored_twice(workshop, passes):
    workshop.search("x", Plan(), plans("rounded", "other"))
    assert passes == ["other"], "the standard is known, and rounding alone needs no pass over the data"
    workshop.search("x", Plan(), plans("rounded", "other"))
    workshop.within(0.5, 1.0).search("y", Plan(remedies=("other",)), plans("rounded"))
    assert passes == ["other", "rounded"]


def test_without_labels_there_is_no_pass_and_no_loss(workshop, passes):
    unlabeled = Workshop(workshop.bench, Compared(records.comparison(), {}), workshop._folder)
    tried = unlabeled.search("x", Plan(), plans("other"))
    assert not passes
    assert tried.current_loss is None
    assert (tried.trials["other"].loss, tried.trials["other"].change) == (None, None)


def test_a_plan_is_built_once(workshop, monkeypatch):
    built: list[Plan] = []
    build = search_module.build

    def noted(plan, case, path, **rest):
        built.append(plan)
        return build(plan, case, path, **rest)

    monkeypatch.setattr(search_module, "build", noted)
    first = workshop.make(Plan(remedies=("other",)))
    assert workshop.within(0.0, 0.5).make(Plan(remedies=("other",))) == first
    assert len(built) == 1
    assert workshop.make(Plan(remedies=("rounded",))) != first


def test_searches_start_each_contender_once(workshop, in_process):
    in_process.started.clear()
    workshop.search("x", Plan(), plans("rounded"))
    assert sorted(in_process.started) == ["current", "rounded", "standard"]
    assert not in_process.alive


def test_only_as_many_race_at_once_as_fit_into_memory(workshop, in_process):
    names = ("rounded", "other", "nan")
    at_once = workshop.search("x", Plan(), plans(*names))
    in_process.started.clear()
    workshop._at_once = 2
    in_groups = workshop.search("y", Plan(), plans(*names))
    assert in_process.started.count("current") == 3, "each group has the current plan beside it"
    assert set(in_groups.trials) == set(at_once.trials)
    assert [rejected.remedy for rejected in in_groups.failed] == [rejected.remedy for rejected in at_once.failed]
    assert in_groups.trials["other"].change == at_once.trials["other"].change


def test_a_resumed_search_measures_nothing_again(workshop, tmp_path, in_process):
    workshop._journal = Journal(tmp_path / "journal")
    first = workshop.search("x", Plan(), plans("rounded", "other"))
    in_process.started.clear()
    assert workshop.search("x", Plan(), plans("rounded", "other")) == first
    assert not in_process.started
    workshop.search("x", Plan(), plans("rounded"))
    assert in_process.started, "another search is another step"


def test_models_that_are_not_needed_any_more_leave_the_disk(workshop):
    plan = Plan(remedies=("other",))
    path = Path(workshop.make(plan).path)
    beside = path.with_name(f"{path.name}.data")
    beside.write_bytes(b"weights")
    workshop.discard([plan, Plan(), Plan(from_standard=True)])
    assert not path.exists()
    assert not beside.exists()
    assert Path(workshop.bench.case.standard.path).exists(), "the user's own files stay"
    assert Path(workshop.make(plan).path).exists(), "it can be made again"


def test_a_search_says_what_it_does(workshop):
    told: list[str] = []
    workshop.bench = replace(workshop.bench, progress=lambda what, _=None: told.append(what))
    workshop.search("graph", Plan(), plans("rounded"))
    assert "graph: building rounded" in told
    assert "graph: timing" in told
