"""Leave one out: what each kept remedy is worth in the end, and that one in the way is given up."""

from __future__ import annotations

import pytest

from stages.stub_workshop import StubWorkshop, trial
from unlag.stages.fixed import Decision, Kept
from unlag.stages.goal import Goal
from unlag.stages.hardware import CPU_SETTINGS
from unlag.stages.native import AS_STANDARD
from unlag.stages.plan import Plan
from unlag.stages.worth import leave_one_out, without

SETTING, OPTIONS = next(iter(CPU_SETTINGS.items()))
PLAN = Plan("dynamic_int8", ("scale", "fuse"), dict(OPTIONS))
DECISIONS = {
    "baseline": Decision((), ()),
    "quantization": Decision((Kept("dynamic_int8", "faster"),), ()),
    "graph": Decision((Kept("scale", "right"), Kept("fuse", "faster")), ()),
    "hardware": Decision((Kept(SETTING, "faster"),), ()),
}


def weigh(**ratios: float):
    workshop = StubWorkshop({name.replace("setting", SETTING): trial(ratio) for name, ratio in ratios.items()})
    return workshop, *leave_one_out(workshop, PLAN, DECISIONS, Goal())


def test_each_kept_remedy_is_left_out_once():
    workshop, plan, decisions = weigh(dynamic_int8=2.0, scale=1.0, fuse=1.2, setting=1.05)
    ((_, current, tried),) = workshop.searches
    assert current == plan == PLAN
    assert tried["dynamic_int8"] == Plan("float32", ("scale", "fuse"), dict(OPTIONS))
    assert tried["fuse"].remedies == ("scale",)
    assert tried[SETTING].options == {}
    worth = {kept.remedy: kept.worth.estimate for decision in decisions.values() for kept in decision.kept}
    assert worth == {"dynamic_int8": 2.0, "scale": 1.0, "fuse": 1.2, SETTING: 1.05}


def test_the_one_that_is_most_in_the_way_is_given_up():
    _, plan, decisions = weigh(dynamic_int8=2.0, scale=1.0, fuse=0.9, setting=0.95)
    assert plan.remedies == ("scale",)
    assert plan.options == OPTIONS, "one at a time: without the first the second may be useful again"
    assert [kept.remedy for kept in decisions["graph"].kept] == ["scale"]
    assert (
        decisions["graph"].rejected[0].reason.startswith("in the finished model it is in the way: without it -10.0 %")
    )


def test_what_the_accuracy_needs_is_not_given_up_for_speed():
    workshop = StubWorkshop({"scale": trial(0.8, loss=4.0)})
    plan, _ = leave_one_out(workshop, PLAN, DECISIONS, Goal())
    assert plan == PLAN


def test_nothing_kept_nothing_measured():
    workshop = StubWorkshop({})
    empty = dict.fromkeys(DECISIONS, Decision((), ()))
    assert leave_one_out(workshop, Plan(), empty, Goal()) == (Plan(), empty)
    assert not workshop.searches


@pytest.mark.parametrize("name", ["rebuilt from the standard", "unknown"])
def test_what_is_no_part_of_the_plan_can_not_be_left_out(name):
    assert without(PLAN, "graph", name) == PLAN


def test_of_a_model_that_was_moved_to_another_runtime_only_the_move_is_weighed():
    moved = Plan(from_standard=True, runtime="other", recipe="int8", options={"hint": "throughput"})
    assert without(moved, "hardware", "other, int8") == Plan(
        from_standard=True, runtime="other", options={"hint": "throughput"}
    )
    assert without(moved, "hardware", "hint=throughput").options == {}
    assert without(moved, "quantization", "dynamic_int8") == moved
    as_made = Plan("dynamic_int8", ("fuse",), runtime="other")
    assert without(as_made, "graph", "fuse") == as_made, "its worth in the other runtime was not asked for"


def test_of_another_runtimes_own_model_recipe_and_remedies_are_weighed():
    native = Plan(from_standard=True, recipe="int8", remedies=("restore", "static"))
    assert without(native, "quantization", "int8") == Plan(from_standard=True, remedies=("restore", "static"))
    assert without(native, "graph", "static").remedies == ("restore",)
    floats = Plan(from_standard=True)
    assert without(floats, "quantization", AS_STANDARD) == floats
