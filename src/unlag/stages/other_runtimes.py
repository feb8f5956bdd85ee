"""The model that the stages have made, beside what every other installed runtime makes of it and of the standard."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unlag.errors import UsageError
from unlag.runtimes.contract import Runtime, find_runtime, runtime_names
from unlag.stages.fixed import Decision, Kept, OtherRuntime, Rejected
from unlag.stages.goal import Goal
from unlag.stages.native import fit_settings
from unlag.stages.plan import Plan
from unlag.stages.search import Round, Trial, Workshop, best_of, in_words
from unlag.stages.winners import acceptable, beaten, helps, why_not

AS_MADE = "the model of the stages so far"
STANDARD = "the standard"


def try_other_runtimes(
    workshop: Workshop, current: Plan, goal: Goal
) -> tuple[Plan, Decision, tuple[OtherRuntime, ...]]:
    """Move to the best of the other runtimes, if that is measured to help; each runtime's best is told anyway.

    What a runtime is given: the current model as it is, the standard's floats, and what its own tools make of those.
    """
    runtimes, absent = _installed(workshop)
    decision = Decision((), absent)
    winners: dict[str, Trial] = {}
    found: list[OtherRuntime] = []
    for place, (name, runtime) in enumerate(runtimes.items()):
        part = workshop.within(0.7 * place / len(runtimes), 0.7 * (place + 1) / len(runtimes))
        tried = part.search(f"runtimes, {name}", current, _candidates(workshop, current, name, runtime))
        best = _best(tried, goal)
        if best is not None:
            found.append(_described(name, best, tried.trials[best]))
            winners |= {best: tried.trials[best]} if helps(tried.trials[best], tried, goal) else {}
        decision += Decision((), _rejected(tried, best, goal))
    if not winners:
        return current, decision, tuple(found)
    first = best_of(winners, goal)
    moved = winners.pop(first)
    others = tuple(beaten(name, trial, first) for name, trial in winners.items())
    decision += Decision((Kept(first, in_words(moved)),), others)
    name = moved.plan.runtime
    plan, kept = fit_settings(workshop.within(0.7, 1.0), moved.plan, runtimes[name], goal, f"settings, {name}")
    return plan, decision + kept, tuple(found)


def _installed(workshop: Workshop) -> tuple[dict[str, Runtime], tuple[Rejected, ...]]:
    """Runtimes that take the standard's file beside the one that it runs in; and those that are not installed."""
    standard = workshop.bench.case.standard
    usable: dict[str, Runtime] = {}
    absent = []
    for name in runtime_names():
        if name == standard.runtime:
            continue
        try:
            runtime = find_runtime(name)
        except UsageError as error:
            absent.append(Rejected(name, error.message))
            continue
        if runtime.takes(Path(standard.path)):
            usable[name] = runtime
    return usable, tuple(absent)


def _candidates(workshop: Workshop, current: Plan, name: str, runtime: Runtime) -> dict[str, Plan]:
    """Plans by what the report calls them."""
    moved = msgspec.structs.replace(current, runtime=name, options={})
    standard = Plan(from_standard=True, runtime=name)
    plans = {f"{name}, {STANDARD}": standard}
    if runtime.takes(Path(workshop.make(current).path)):
        plans = {f"{name}, {AS_MADE}": moved, **plans}
    for recipe in runtime.recipes():
        plans[f"{name}, {recipe}"] = msgspec.structs.replace(standard, recipe=recipe)
    return plans


def _best(tried: Round, goal: Goal) -> str | None:
    """The best of those that are accurate enough."""
    allowed = {name: trial for name, trial in tried.trials.items() if acceptable(trial, tried, goal)}
    return best_of(allowed, goal) if allowed else None


def _rejected(tried: Round, best: str | None, goal: Goal) -> tuple[Rejected, ...]:
    """Every candidate that was not kept, and why."""
    rejected = list(tried.failed)
    for name, trial in tried.trials.items():
        if name == best and helps(trial, tried, goal):
            continue
        if best is not None and helps(trial, tried, goal):
            rejected.append(beaten(name, trial, best))
        else:
            rejected.append(why_not(name, trial, tried, goal))
    return tuple(rejected)


def _described(name: str, best: str, trial: Trial) -> OtherRuntime:
    return OtherRuntime(
        runtime=name,
        model=best.removeprefix(f"{name}, "),
        ratio=trial.ratio,
        loss=trial.loss,
        size_bytes=trial.size_bytes,
    )
