"""Leave one out: what each kept remedy is worth in the finished model."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from unlag.stages.fixed import Decision, Kept, Rejected, StageName
from unlag.stages.goal import Goal
from unlag.stages.hardware import options_of
from unlag.stages.native import AS_STANDARD
from unlag.stages.plan import PRECISIONS, Plan
from unlag.stages.quantization import BY_LAYER
from unlag.stages.search import Trial, Workshop, in_words
from unlag.stages.winners import acceptable

Decisions = dict[StageName, Decision]


def leave_one_out(
    workshop: Workshop, plan: Plan, decisions: Mapping[StageName, Decision], goal: Goal
) -> tuple[Plan, Decisions]:
    """Measure the finished plan without each thing that was kept, and give up the one that turns out to be in the way.

    Remedies that were kept one by one may not help any more once later ones are there.
    """
    kept = [(stage, part.remedy) for stage, decision in decisions.items() for part in decision.kept]
    candidates = {name: shorter for stage, name in kept if (shorter := without(plan, stage, name)) != plan}
    if not candidates:
        return plan, dict(decisions)
    tried = workshop.search("what each is worth", plan, candidates)
    harmful = [name for name, trial in tried.trials.items() if trial.faster and acceptable(trial, tried, goal)]
    worst = min(harmful, key=lambda name: tried.trials[name].ratio.estimate, default=None)
    workshop.discard(trial.plan for name, trial in tried.trials.items() if name != worst)
    weighed = {stage: _weighed(decision, tried.trials, worst) for stage, decision in decisions.items()}
    return (plan if worst is None else candidates[worst]), weighed


def without(plan: Plan, stage: StageName, name: str) -> Plan:
    """The plan less one thing that a stage has kept; the same plan, where that can't be taken out alone."""
    if plan.recipe and name in {plan.recipe, f"{plan.runtime}, {plan.recipe}"}:
        return msgspec.structs.replace(plan, recipe="")
    if name in plan.remedies and not plan.runtime:
        return msgspec.structs.replace(plan, remedies=tuple(r for r in plan.remedies if r != name))
    if plan.recipe or plan.runtime or name == AS_STANDARD:
        return _without_options(plan, name)
    if stage == "quantization" or name in PRECISIONS or name == BY_LAYER:  # decided once more on the finished graph
        return plan.with_precision("float32")
    return _without_options(plan, name)


def _without_options(plan: Plan, name: str) -> Plan:
    options = {k: v for k, v in plan.options.items() if k not in options_of(name)}
    return msgspec.structs.replace(plan, options=options)


def _weighed(decision: Decision, trials: Mapping[str, Trial], worst: str | None) -> Decision:
    kept, given_up = [], []
    for part in decision.kept:
        trial = trials.get(part.remedy)
        if part.remedy == worst and trial is not None:
            given_up.append(
                Rejected(part.remedy, f"in the finished model it is in the way: without it {in_words(trial)}")
            )
        else:
            kept.append(Kept(part.remedy, part.reason, None if trial is None else trial.ratio))
    return Decision(tuple(kept), (*decision.rejected, *given_up), decision.notes)
