"""A search: what is built, what does not race, and that nothing is scored twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from measure.scripted import hurry, in_process, linear
from stages.stub_workshop import StubWorkshop, trial
from unlag.causes.contract import Step
from unlag.errors import UsageError
from unlag.measure.accuracy import score
from unlag.measure.bench import open_bench
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.stages import search as search_module
from unlag.stages.graph import restructure_graph
from unlag.stages.hardware import CPU_SETTINGS, fit_hardware
from unlag.stages.plan import Plan, remedies_of
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

    def build(plan: Plan, case: Case, path: Path) -> Variant:
        name = plan.remedies[-1] if plan.remedies else "same"
        if name == "impossible":
            raise UsageError("the quantizer does not take it")
        return Variant("onnxruntime", linear(path, BUILT[name]).path, {**case.variant.options, **plan.options})

    monkeypatch.setattr(search_module, "build", build)
    with bench.contest({"standard": standard}) as contest:
        scored = score(contest, "standard", bench.workload.evaluation)
    return Workshop(bench, {"standard": scored}, tmp_path / "plans")


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
    assert tried.current_loss == 0.0


def test_a_candidate_that_is_rejected_by_the_runtime_does_not_race(workshop):
    tried = workshop.search("x", Plan(), {"odd": Plan().with_options({"optimization": "nonsense"})})
    assert not tried.trials
    assert tried.failed[0].reason.startswith("it does not run: ")


def test_trials_have_time_accuracy_and_size_against_the_current_plan(workshop):
    tried = workshop.search("x", Plan(), plans("rounded", "other"))
    rounded, other = tried.trials["rounded"], tried.trials["other"]
    assert rounded.ratio.low <= rounded.ratio.estimate <= rounded.ratio.high
    assert rounded.change == Interval(0.0, 0.0, 0.0)
    assert rounded.loss == 0.0
    assert other.change.high < -30
    assert other.loss == pytest.approx(-other.change.estimate)
    assert other.cosine < 0.9 < rounded.cosine
    assert rounded.size_bytes == Path(rounded.variant.path).stat().st_size
    assert rounded.plan.remedies == ("rounded",)


def test_nothing_is_scored_twice(workshop, passes):
    workshop.search("x", Plan(), plans("rounded", "other"))
    assert passes == ["other"], "the standard is known, and rounding alone needs no pass over the data"
    workshop.search("x", Plan(), plans("rounded", "other"))
    workshop.within(0.5, 1.0).search("y", Plan(remedies=("other",)), plans("rounded"))
    assert passes == ["other", "rounded"]


def test_without_labels_there_is_no_pass_and_no_loss(workshop, passes):
    unlabeled = Workshop(workshop.bench, {}, workshop._folder)
    tried = unlabeled.search("x", Plan(), plans("other"))
    assert not passes
    assert tried.current_loss is None
    assert (tried.trials["other"].loss, tried.trials["other"].change) == (None, None)


def test_a_plan_is_built_once(workshop, monkeypatch):
    built: list[Plan] = []
    build = search_module.build

    def noted(plan, case, path):
        built.append(plan)
        return build(plan, case, path)

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


def test_a_search_says_what_it_does(workshop):
    told: list[str] = []
    workshop.bench = replace(workshop.bench, progress=lambda what, _=None: told.append(what))
    workshop.search("graph", Plan(), plans("rounded"))
    assert "graph: building rounded" in told
    assert "graph: timing" in told


def test_the_graph_is_mended_before_it_is_fused():
    remedies = remedies_of("graph")
    mended, fused = StubWorkshop({"restore_scale": trial(0.9), "fuse_attention": trial(0.7)}), Plan(precision="float32")
    plan, decision = restructure_graph(mended, fused, 0.5)
    (first, start, mending), (second, between, fusing) = mended.searches
    assert (first, second) == ("graph, mending", "graph, fusing")
    assert start is fused
    assert between.remedies == ("restore_scale",)
    assert set(mending) | set(fusing) == set(remedies)
    assert not set(mending) & set(fusing)
    assert {remedies[name].step for name in fusing} == {Step.FUSE}
    assert "restore_scale" in mending
    assert plan == Plan("float32", ("restore_scale", "fuse_attention"))
    assert [kept.remedy for kept in decision.kept] == ["restore_scale", "fuse_attention"]


def test_settings_are_not_judged_beside_a_busy_core():
    """One thread looks like a gain there, and isn't one when the machine is quiet again."""
    workshop = StubWorkshop({"threads=1": trial(0.6), "arena=off": trial(1.0)}, quiet=False)
    plan, decision = fit_hardware(workshop, Plan(), 0.5)
    assert plan == Plan()
    assert not decision.kept
    assert {rejected.remedy for rejected in decision.rejected} == {"threads=1", "arena=off"}
    assert all("other processes ran" in rejected.reason for rejected in decision.rejected)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_is_tried_only_where_there_are_more(threads):
    workshop = StubWorkshop({"arena=off": trial(0.9)})
    workshop.bench.threads = threads
    plan, decision = fit_hardware(workshop, Plan(), 0.5)
    ((_, _, tried),) = workshop.searches
    assert ("threads=1" in tried) == (threads > 1)
    assert set(tried) <= set(CPU_SETTINGS)
    assert plan.options == {"arena": "off"}
    assert [kept.remedy for kept in decision.kept] == ["arena=off"]
