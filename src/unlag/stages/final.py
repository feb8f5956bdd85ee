"""The last contest of a fix: standard, variant and every stage's model side by side; and what goes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from unlag.measure.accuracy import Scored
from unlag.measure.compare import (
    CONTROL,
    STANDARD,
    VARIANT,
    Compared,
    check_outputs,
    comparison_of,
    placement_of,
    speed_of,
)
from unlag.measure.contest import ContestResult
from unlag.measure.monitor import Monitor
from unlag.measure.statistics import SMALLEST_EFFECT, Interval
from unlag.model.variant import Variant
from unlag.stages.fixed import StageName
from unlag.stages.goal import Goal
from unlag.stages.search import Workshop

WIDEST_RESULT = 1.06
"""Ratio of the ends of the final slowdown's interval: rounds go on while it is wider."""

STAGES: tuple[StageName, ...] = ("baseline", "quantization", "graph", "hardware")


@dataclass(frozen=True)
class Final:
    """Times and scores of all stages' models, from one contest."""

    compared: Compared
    """The standard against the last stage's model."""
    result: ContestResult
    contenders: Mapping[StageName, str]
    """Each stage's name in the contest: stages that changed nothing share one."""
    seed: int

    def ratio(self, numerator: StageName, denominator: StageName | None = None) -> Interval:
        """Ratio of two stages' times; of a stage's to the standard's without a denominator."""
        other = STANDARD if denominator is None else self.contenders[denominator]
        name = self.contenders[numerator]
        return Interval(1.0, 1.0, 1.0) if name == other else self.result.ratio(name, other)

    def scored(self, stage: StageName) -> Scored | None:
        """The stage's predictions; nothing without a labelled workload."""
        return self.compared.scores.get(self.contenders[stage])

    def change(self, stage: StageName) -> Interval | None:
        """The stage's points against the standard."""
        scored, standard = self.scored(stage), self.compared.scores.get(STANDARD)
        return None if scored is None or standard is None else scored.change_from(standard, self.seed)

    def allowed(self, stage: StageName, goal: Goal) -> bool:
        """Whether the stage's model is accurate enough to go out, as far as that was measured."""
        change = self.change(stage)
        return change is None or goal.allows(Interval(-change.estimate, -change.high, -change.low))

    def best(self, goal: Goal) -> StageName:
        """The last stage whose model is accurate enough, unless an earlier one's is clearly faster.

        The last stage, where none is accurate enough.
        """
        allowed = [stage for stage in STAGES if self.allowed(stage, goal)] or [STAGES[-1]]
        best = allowed[-1]
        for stage in allowed:
            if goal.objective != "size" and self.ratio(best, stage).low > 1 + SMALLEST_EFFECT:
                best = stage
        return best


def final_contest(workshop: Workshop, variants: Mapping[StageName, Variant]) -> Final:
    """Standard, its control, and every stage's model, in one full contest."""
    bench = workshop.bench
    case = msgspec.structs.replace(bench.case, variant=variants["hardware"])
    last = dataclasses.replace(bench, case=case)
    contenders: dict[str, Variant] = {STANDARD: case.standard, CONTROL: case.standard, VARIANT: case.variant}
    names: dict[StageName, str] = {}
    for stage in STAGES:
        twins = [name for name, v in contenders.items() if v == variants[stage] and name not in {STANDARD, CONTROL}]
        names[stage] = twins[0] if twins else stage
        contenders.setdefault(names[stage], variants[stage])
    with Monitor(bench.cores) as monitor, last.contest(contenders) as contest:
        agreed = check_outputs(contest, last)
        result = contest.measure(_is_settled)
        scored = [name for name in contenders if name != CONTROL] if bench.workload.evaluation else []
        scores = {name: workshop.score(contest, name, contenders[name]) for name in scored}
        placements = {name: placement_of(contest, name, contenders[name]) for name in (STANDARD, VARIANT)}
    comparison = comparison_of(last, result, scores, agreed, monitor.log, placements)
    return Final(Compared(comparison, scores), result, names, bench.case.seed)


def _is_settled(result: ContestResult) -> bool:
    """Whether the verdict is clear, and narrow enough for a table to be read."""
    slowdown, _, verdict = speed_of(result)
    return verdict != "inconclusive" and slowdown.high / slowdown.low <= WIDEST_RESULT
