"""Only what is measured to help is kept, and every rejection has its reason in numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.stub_workshop import StubWorkshop, pm, trial
from unlag.stages.fixed import Rejected
from unlag.stages.goal import Goal
from unlag.stages.plan import Plan
from unlag.stages.search import Round, best_of, in_words, percent
from unlag.stages.winners import TOGETHER, acceptable, helps, keep_winners, merge

CURRENT = Plan(precision="dynamic_int8")
BUDGET = 0.5
GOAL = Goal(BUDGET)
SMALLEST = Goal(BUDGET, "size")


def candidates(*names: str) -> dict[str, Plan]:
    return {name: CURRENT.with_remedies(name) for name in names}


def keep(workshop: StubWorkshop, *names: str):
    plan, decision = keep_winners(workshop, "graph", CURRENT, candidates(*names), GOAL)
    return plan, [kept.remedy for kept in decision.kept], {r.remedy: r.reason for r in decision.rejected}


def test_without_candidates_nothing_is_searched():
    workshop = StubWorkshop({})
    plan, kept, rejected = keep(workshop)
    assert (plan, kept, rejected) == (CURRENT, [], {})
    assert not workshop.searches


def test_one_winner_is_kept_and_the_others_say_why_not():
    workshop = StubWorkshop(
        {"fast": trial(0.8), "idle": trial(1.0), "slow": trial(1.2)}, (Rejected("odd", "no such node"),)
    )
    plan, kept, rejected = keep(workshop, "fast", "idle", "slow", "odd")
    assert plan.remedies == ("fast",)
    assert plan.precision == "dynamic_int8"
    assert kept == ["fast"]
    assert rejected["odd"] == "no such node"
    assert rejected["idle"] == "no measured gain: +0.0 % time (-1.0 to +1.0)"
    assert rejected["slow"].startswith("no measured gain: +20.0 % time")
    assert len(workshop.searches) == 1


@pytest.mark.parametrize(
    ("ratio", "half", "kept"), [(0.8, 0.3, False), (0.97, 0.01, True), (0.985, 0.01, False), (0.995, 0.001, False)]
)
def test_a_gain_counts_only_with_its_whole_interval_and_beyond_one_percent(ratio, half, kept):
    plan, _, rejected = keep(StubWorkshop({"a": trial(ratio, half=half)}), "a")
    assert (plan.remedies == ("a",)) == kept
    assert bool(rejected) != kept


def test_nothing_that_helps_leaves_the_plan_as_it_is():
    plan, kept, rejected = keep(StubWorkshop({"a": trial(1.0), "b": trial(1.1)}), "a", "b")
    assert plan is CURRENT
    assert not kept
    assert set(rejected) == {"a", "b"}


def test_speed_that_costs_more_accuracy_than_the_budget_is_rejected():
    workshop = StubWorkshop({"cheap": trial(0.5, loss=0.9, change=-0.9), "fair": trial(0.7, loss=0.4, change=-0.4)})
    plan, kept, rejected = keep(workshop, "cheap", "fair")
    assert plan.remedies == ("fair",)
    assert kept == ["fair"]
    assert "0.90 points below the standard, outside the budget" in rejected["cheap"]
    assert "-0.90 points (-1.00 to -0.80)" in rejected["cheap"]


def test_what_is_wrong_already_may_stay_as_wrong_but_not_worse():
    trials = {"as wrong": trial(0.8, loss=4.6, change=None), "worse": trial(0.8, loss=4.7, change=-0.1)}
    _, kept, rejected = keep(StubWorkshop(trials, current_loss=4.6), "as wrong", "worse")
    assert kept == ["as wrong"]
    assert "outside the budget" in rejected["worse"]


def test_lost_accuracy_that_comes_back_is_kept_though_it_costs_time():
    workshop = StubWorkshop({"scale": trial(1.02, loss=0.0, change=4.6)}, current_loss=4.6)
    plan, kept, _ = keep(workshop, "scale")
    assert plan.remedies == ("scale",)
    assert kept == ["scale"]


def test_without_labels_the_outputs_may_not_leave_the_standards():
    trials = {"near": trial(0.8, loss=None, cosine=0.995), "far": trial(0.8, loss=None, cosine=0.97)}
    _, kept, rejected = keep(StubWorkshop(trials, current_loss=None, current_cosine=1.0), "near", "far")
    assert kept == ["near"]
    assert "cosine 0.970, outside the budget" in rejected["far"]
    assert "points" not in rejected["far"]


def test_winners_are_put_together_when_together_they_are_as_good():
    workshop = StubWorkshop({"a": trial(0.8), "b": trial(0.9), TOGETHER: trial(0.7)})
    plan, kept, rejected = keep(workshop, "a", "b", "c")
    assert plan.remedies == ("a", "b")
    assert kept == ["a", "b"]
    assert not rejected
    what, current, tried = workshop.searches[1]
    assert what == "graph, together"
    assert current is CURRENT
    assert {name: tried[name].remedies for name in tried} == {TOGETHER: ("a", "b"), "a": ("a",)}


def test_the_best_single_one_is_kept_where_together_they_are_slower():
    workshop = StubWorkshop({"a": trial(0.8), "b": trial(0.9), TOGETHER: trial(0.95)})
    plan, kept, rejected = keep(workshop, "a", "b")
    assert plan.remedies == ("a",)
    assert kept == ["a"]
    assert rejected["b"].endswith("but a alone is better than all together")


def test_together_stays_where_the_single_one_is_not_clearly_faster():
    plan, _, _ = keep(StubWorkshop({"a": trial(0.8), "b": trial(0.9), TOGETHER: trial(0.81)}), "a", "b")
    assert plan.remedies == ("a", "b")


def test_together_stays_where_it_is_more_accurate_though_slower():
    trials = {
        "fast": trial(0.8, loss=4.6),
        "right": trial(1.0, loss=0.1, change=4.5),
        TOGETHER: trial(0.9, loss=0.1, change=4.5),
    }
    plan, kept, _ = keep(StubWorkshop(trials, current_loss=4.6), "fast", "right")
    assert plan.remedies == ("fast", "right")
    assert kept == ["fast", "right"]


def test_the_best_single_one_is_kept_where_together_they_do_not_run():
    plan, kept, rejected = keep(StubWorkshop({"a": trial(0.8), "b": trial(0.9)}), "a", "b")
    assert plan.remedies == ("a",)
    assert kept == ["a"]
    assert set(rejected) == {"b"}


def test_together_outside_the_budget_is_not_kept():
    """Each loses 0.4 points, which the budget allows; both lose 0.8."""
    trials = {
        "a": trial(0.8, loss=0.4, change=-0.4),
        "b": trial(0.9, loss=0.4, change=-0.4),
        TOGETHER: trial(0.7, loss=0.8, change=-0.8),
    }
    plan, kept, rejected = keep(StubWorkshop(trials), "a", "b")
    assert plan.remedies == ("a",)
    assert kept == ["a"]
    assert set(rejected) == {"b"}


def test_options_of_both_are_merged():
    one, other = CURRENT.with_options({"arena": "off"}), CURRENT.with_options({"spinning": "off"}).with_remedies("x")
    assert merge(one, other) == Plan("dynamic_int8", ("x",), {"arena": "off", "spinning": "off"})


def test_a_plan_names_a_remedy_once():
    assert Plan().with_remedies("a", "b").with_remedies("b", "c").remedies == ("a", "b", "c")


@pytest.mark.parametrize("loss", [0.0, 0.3, 0.5, 0.50001, 3.0])
def test_the_budget_is_below_the_standard(loss):
    assert acceptable(trial(0.5, loss=loss), Round({}, (), pm(0.0, 0.0), 1.0, 1.0, 100), GOAL) == (loss <= BUDGET)


@given(st.floats(0.3, 2.0), st.floats(-1, 6), st.floats(0, 5))
def test_what_helps_is_faster_or_more_accurate_and_never_unacceptable(ratio, loss, current_loss):
    tried = Round({}, (), pm(current_loss, 0.0), 1.0, 1.0, 100)
    candidate = trial(ratio, loss=loss, change=current_loss - loss)
    if helps(candidate, tried, GOAL):
        assert loss <= max(BUDGET, current_loss)
        assert candidate.ratio.high < 0.99 or current_loss - loss > 0.1


def test_best_is_the_fastest_that_is_clearly_faster():
    assert best_of({"a": trial(0.8), "b": trial(0.6), "c": trial(0.9)}, GOAL) == "b"


def test_best_of_a_tie_is_the_more_accurate_then_the_smaller():
    tie = {"fast": trial(0.600, loss=0.4), "right": trial(0.605, loss=0.1), "far": trial(0.8, loss=0.0)}
    assert best_of(tie, GOAL) == "right"
    same = {"large": trial(0.600, size_bytes=200), "small": trial(0.605, size_bytes=100)}
    assert best_of(same, GOAL) == "small"
    hardly = {"a": trial(0.600, loss=0.11, size_bytes=100), "b": trial(0.605, loss=0.10, size_bytes=200)}
    assert best_of(hardly, GOAL) == "a", "a hundredth of a point is no reason"


def test_a_strict_goal_counts_the_far_end_of_a_loss():
    """0.4 ± 0.3 points may be 0.7: the estimate is within the budget, the interval isn't."""
    tried = Round({}, (), pm(0.0, 0.0), 1.0, 1.0, 100)
    unsure = trial(0.5, loss=0.4, loss_half=0.3)
    assert acceptable(unsure, tried, GOAL)
    assert not acceptable(unsure, tried, Goal(BUDGET, strict=True))
    assert acceptable(trial(0.5, loss=0.4, loss_half=0.05), tried, Goal(BUDGET, strict=True))


def test_smaller_helps_only_where_size_is_the_objective_and_time_is_not_lost():
    tried = Round({}, (), pm(0.0, 0.0), 1.0, 1.0, 100)
    assert not helps(trial(1.0, size_bytes=50), tried, GOAL)
    assert helps(trial(1.0, size_bytes=50), tried, SMALLEST)
    assert not helps(trial(1.0, size_bytes=99), tried, SMALLEST)
    assert not helps(trial(1.1, size_bytes=50), tried, SMALLEST)


def test_best_in_size_is_the_smallest_whatever_is_faster():
    trials = {"fast": trial(0.5, size_bytes=100), "small": trial(0.9, size_bytes=50)}
    assert best_of(trials, SMALLEST) == "small"
    assert best_of(trials, GOAL) == "fast"


def test_models_that_lost_are_thrown_away():
    workshop = StubWorkshop({"fast": trial(0.8), "idle": trial(1.0)})
    keep(workshop, "fast", "idle")
    assert [plan.remedies for plan in workshop.discarded] == [("idle",)]


def test_best_of_one_is_that_one_even_without_labels():
    assert best_of({"a": trial(1.0, loss=None)}, GOAL) == "a"


def test_numbers_in_words():
    assert percent(pm(0.8, 0.05)) == "-20.0 % time (-25.0 to -15.0)"
    assert in_words(trial(0.8)) == "-20.0 % time (-21.0 to -19.0)"
    assert in_words(trial(0.8, change=-0.3)) == "-20.0 % time (-21.0 to -19.0), -0.30 points (-0.40 to -0.20)"
