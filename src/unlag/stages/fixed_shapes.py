"""Fixed dimensions, for a model that always gets inputs of one shape: shapes are then known when it is opened."""

from __future__ import annotations

from collections.abc import Iterable

from unlag.measure.bench import Bench, inspect
from unlag.model.variant import Variant
from unlag.model.workload import Feed, Workload
from unlag.stages.fixed import Decision, Kept, Rejected
from unlag.stages.goal import Goal
from unlag.stages.plan import Plan
from unlag.stages.search import Workshop, in_words
from unlag.stages.winners import helps, why_not

REMEDY = "fix_dimensions"

LEAST_GAIN = 0.03
"""Other shapes are given up for it."""


def fix_shapes(workshop: Workshop, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    """Try the model with its inputs' dimensions fixed, where the workload has one shape only."""
    case = workshop.bench.case
    reason = obstacle(workshop.bench, case.standard if current.from_standard else case.variant)
    if reason:
        return current, Decision((), (Rejected(REMEDY, reason),))
    tried = workshop.search("fixed shapes", current, {REMEDY: current.with_remedies(REMEDY)})
    trial = tried.trials.get(REMEDY)
    if trial is None:
        return current, Decision((), tried.failed)
    if not helps(trial, tried, goal):
        return current, Decision((), (why_not(REMEDY, trial, tried, goal),))
    if trial.ratio.high > 1 - LEAST_GAIN:
        little = f"{in_words(trial)}; for a model that takes one shape only, a gain of {LEAST_GAIN:.0%} is asked"
        return current, Decision((), (Rejected(REMEDY, little),))
    return trial.plan, Decision((Kept(REMEDY, in_words(trial)),), ())


def obstacle(bench: Bench, variant: Variant) -> str:
    """Why the variant's dimensions can't be fixed, with numbers; empty where they can."""
    if len(bench.case.shapes) > 1:
        asked = ", ".join(map(str, bench.case.shapes))
        return f"{len(bench.case.shapes)} shapes were asked for ({asked}), and a fixed model takes one"
    found = shapes_in(bench.workload)
    if found > 1:
        return f"the workload has inputs of {found} shapes, and a fixed model takes one"
    free = [size for info in inspect(variant).signature.inputs for size in info.shape or ()]
    if all(isinstance(size, int) for size in free):
        return "0 of its inputs' dimensions are free: they are fixed already"
    return ""


def shapes_in(workload: Workload) -> int:
    """How many different shapes of inputs a workload has, those that it is scored on included."""
    scored = workload.evaluation.feeds if workload.evaluation is not None else ()
    return len(_shapes((workload.feed, *workload.agreement, *scored)))


def _shapes(feeds: Iterable[Feed]) -> set[tuple[tuple[str, tuple[int, ...]], ...]]:
    return {tuple(sorted((name, array.shape) for name, array in feed.items())) for feed in feeds}
