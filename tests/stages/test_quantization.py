"""Stage 1: the fastest precision whose own loss the budget allows."""

from __future__ import annotations

import pytest

from stages.stub_workshop import StubWorkshop, trial
from unlag.stages.fixed import Rejected
from unlag.stages.plan import PRECISIONS, Plan
from unlag.stages.quantization import tune_quantization


def tune(workshop: StubWorkshop, current: Plan = Plan(), budget: float = 0.5):  # noqa: B008 - frozen
    plan, decision = tune_quantization(workshop, current, budget)
    return plan, [kept.remedy for kept in decision.kept], {r.remedy: r.reason for r in decision.rejected}


def test_every_precision_is_tried_beside_the_variant():
    workshop = StubWorkshop({})
    start = Plan(remedies=("x",))
    plan, kept, _ = tune(workshop, start)
    ((_, current, tried),) = workshop.searches
    assert current is start
    assert set(tried) == set(PRECISIONS) - {"as_is"}
    assert all(candidate.precision == name and candidate.remedies == ("x",) for name, candidate in tried.items())
    assert (plan, kept) == (start, [])


def test_the_fastest_affordable_precision_is_kept():
    trials = {"float32": trial(0.5), "dynamic_int8": trial(0.3, loss=0.4), "dynamic_int8_tensor": trial(0.25, loss=2.0)}
    plan, kept, rejected = tune(StubWorkshop(trials, (Rejected("dynamic_int8_7bit", "no such kernel"),)))
    assert plan.precision == "dynamic_int8"
    assert kept == ["dynamic_int8"]
    assert "2.00 points below the standard, more than the budget allows" in rejected["dynamic_int8_tensor"]
    assert rejected["float32"].endswith("dynamic_int8 is faster, or as fast and more accurate or smaller")
    assert rejected["dynamic_int8_7bit"] == "no such kernel"


def test_a_variant_that_is_fast_already_stays_as_it_is():
    trials = {"float32": trial(1.6), "dynamic_int8": trial(1.0), "dynamic_int8_7bit": trial(1.05)}
    plan, kept, rejected = tune(StubWorkshop(trials))
    assert plan.precision == "as_is"
    assert not kept
    assert rejected["float32"].startswith("no measured gain: +60.0 % time")


def test_a_loss_of_another_kind_is_not_held_against_a_precision():
    """The variant lacks its attention scale: everything is 4.6 points down until the graph stage mends it."""
    trials = {
        "float32": trial(0.5, loss=4.6),
        "dynamic_int8": trial(0.3, loss=4.9),
        "dynamic_int8_tensor": trial(0.2, loss=5.2),
    }
    plan, kept, _ = tune(StubWorkshop(trials, current_loss=4.6))
    assert plan.precision == "dynamic_int8"
    assert kept == ["dynamic_int8"]


def test_a_precision_that_mends_the_loss_is_the_measure_for_the_others():
    """The variant's int8 weights are coarse: float32 is right again, so int8 may lose the budget from there only."""
    trials = {"float32": trial(0.9, loss=0.0, change=3.0), "dynamic_int8": trial(0.5, loss=2.0, change=1.0)}
    plan, _, rejected = tune(StubWorkshop(trials, current_loss=3.0))
    assert plan.precision == "float32"
    assert "more than the budget allows" in rejected["dynamic_int8"]


def test_without_labels_outputs_stay_near_float32s():
    trials = {
        "float32": trial(0.9, loss=None, cosine=0.97),
        "dynamic_int8": trial(0.5, loss=None, cosine=0.965),
        "dynamic_int8_tensor": trial(0.4, loss=None, cosine=0.9),
    }
    plan, _, rejected = tune(StubWorkshop(trials, current_loss=None, current_cosine=0.97, best_cosine=0.97))
    assert plan.precision == "dynamic_int8"
    assert "dynamic_int8_tensor" in rejected


@pytest.mark.parametrize("sizes", [(100, 200), (200, 100)])
def test_a_tie_goes_to_the_smaller_model(sizes):
    trials = {
        name: trial(0.5, size_bytes=size)
        for name, size in zip(("dynamic_int8", "dynamic_int8_7bit"), sizes, strict=True)
    }
    plan, _, _ = tune(StubWorkshop(trials))
    assert plan.precision == ("dynamic_int8" if sizes[0] < sizes[1] else "dynamic_int8_7bit")


def test_a_variant_within_the_budget_is_never_made_slower():
    """Design, section 8: never slower than what went in."""
    trials = {"float32": trial(2.0, loss=0.0, change=0.3)}
    plan, _, _ = tune(StubWorkshop(trials, current_loss=0.3))
    assert plan.precision == "as_is"
