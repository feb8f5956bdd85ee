"""Explanation -> Fix: the three stages, then one contest in which all of them meet the standard."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from unlag.errors import UsageError
from unlag.measure.accuracy import Scored
from unlag.measure.bench import Bench, inspect
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
from unlag.measure.comparison import Comparison
from unlag.measure.contest import ContestResult
from unlag.measure.monitor import Monitor
from unlag.measure.statistics import SMALLEST_EFFECT, Interval
from unlag.model.variant import Variant
from unlag.proof.explanation import Explanation
from unlag.stages.fixed import Decision, Fix, Rejected, StageName, StageResult
from unlag.stages.graph import restructure_graph
from unlag.stages.hardware import fit_hardware
from unlag.stages.plan import Plan
from unlag.stages.quantization import tune_quantization
from unlag.stages.search import Workshop

WIDEST_RESULT = 1.06
"""Ratio of the ends of the final slowdown's interval: rounds go on while it is wider."""

SAME_TASK = 0.5
"""Cosine to the standard's outputs. The article's Flash, which misses its attention scale, has 0.66."""

STAGES: tuple[StageName, ...] = ("baseline", "quantization", "graph", "hardware")


@dataclass(frozen=True)
class Fixed:
    """The record of a fix, and the model that goes out (still in the working folder)."""

    record: Fix
    variant: Variant


def fix_variant(bench: Bench, compared: Compared, explanation: Explanation, folder: Path, output: Path) -> Fixed:
    """Run the three stages in ``folder``; ``output`` is only named in the record."""
    _check_same_task(compared)
    workshop = Workshop(bench, compared.scores, folder)
    budget = bench.case.accuracy_budget
    plans: dict[StageName, Plan] = {"baseline": Plan()}
    decisions: dict[StageName, Decision] = {"baseline": Decision((), ())}
    search = workshop.within(0.0, 0.2)
    plans["quantization"], decisions["quantization"] = tune_quantization(search, plans["baseline"], budget)
    plans["graph"], decisions["graph"] = restructure_graph(workshop.within(0.2, 0.6), plans["quantization"], budget)
    plans["hardware"], decisions["hardware"] = fit_hardware(workshop.within(0.6, 0.8), plans["graph"], budget)
    variants = {name: workshop.make(plan) for name, plan in plans.items()}
    final = _final_contest(workshop.within(0.8, 1.0), variants)
    notes: tuple[str, ...] = ()
    fallback = _fallback(final, budget)
    if fallback is not None:
        plan, note = fallback
        notes = (note,)
        decisions["hardware"] = _taken_back(decisions["hardware"], note)
        variants["hardware"] = workshop.make(plan)
        final = _final_contest(workshop.within(0.9, 1.0), variants)
    notes += _unlabeled_note(final.compared.comparison)
    record = _record(explanation, final, variants, decisions, output)
    return Fixed(msgspec.structs.replace(record, notes=notes), variants["hardware"])


def _check_same_task(compared: Compared) -> None:
    """Refuse to fix what computes something else, where no labels could show that a fix is as good."""
    agreed = compared.comparison.agreement
    if compared.scores or agreed is None or agreed.cosine >= SAME_TASK:
        return
    raise UsageError(
        f"can't be fixed without labels: the variant's outputs are not the standard's (cosine {agreed.cosine:.3f})",
        hint="give a workload with labels, such as FILE.npz with an array named labels",
    )


def _unlabeled_note(comparison: Comparison) -> tuple[str, ...]:
    """What stands in for accuracy where there are no labels."""
    agreed = comparison.agreement
    if comparison.accuracy_change is not None or agreed is None:
        return ()
    winners = "" if agreed.top1 is None else f", {agreed.top1:.0%} of the rows with the same winner"
    return (f"no labels, so no accuracy: its outputs have cosine {agreed.cosine:.4f} to the standard's{winners}",)


def _fallback(final: _Final, budget: float) -> tuple[Plan, str] | None:
    """What goes out instead, and why, where the stages ended behind the variant or the standard."""
    scores, baseline = final.compared.scores, final.contenders["baseline"]
    if baseline != VARIANT:
        against, to_standard = final.result.ratio(VARIANT, baseline), final.result.ratio(baseline, STANDARD)
        accurate = not scores or scores[STANDARD].value - scores[baseline].value <= budget
        if accurate and against.low > 1 + SMALLEST_EFFECT and to_standard.low < 1 + SMALLEST_EFFECT:
            return Plan(), (
                f"the stages together ended slower than the variant as it came ({against.estimate:.2f}× its time), "
                "so the variant goes out unchanged"
            )
    comparison = final.compared.comparison
    if comparison.verdict.speed == "slower":
        return Plan(from_standard=True), (
            "nothing that was tried beats the standard on this machine "
            f"(best: {comparison.slowdown.estimate:.2f}× its time), so the standard itself goes out"
        )
    return None


def _taken_back(decision: Decision, note: str) -> Decision:
    """The last stage's decision once its plan was given up."""
    given_up = tuple(Rejected(kept.remedy, f"given up: {note}") for kept in decision.kept)
    return Decision((), (*decision.rejected, *given_up))


@dataclass(frozen=True)
class _Final:
    compared: Compared
    result: ContestResult
    contenders: Mapping[StageName, str]


def _final_contest(workshop: Workshop, variants: Mapping[StageName, Variant]) -> _Final:
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
    return _Final(Compared(comparison, scores), result, names)


def _is_settled(result: ContestResult) -> bool:
    """Whether the verdict is clear, and narrow enough for a table to be read."""
    slowdown, _, verdict = speed_of(result)
    return verdict != "inconclusive" and slowdown.high / slowdown.low <= WIDEST_RESULT


def _record(
    explanation: Explanation,
    final: _Final,
    variants: Mapping[StageName, Variant],
    decisions: Mapping[StageName, Decision],
    output: Path,
) -> Fix:
    scores = final.compared.scores
    standard: Scored | None = scores.get(STANDARD)
    stages = []
    for stage in STAGES:
        name = final.contenders[stage]
        scored = scores.get(name)
        stages.append(
            StageResult(
                name=stage,
                latency_ms=final.result.latency_ms(name),
                speedup_over_baseline=_ratio(final.result, final.contenders["baseline"], name),
                slowdown_to_standard=final.result.ratio(name, STANDARD),
                accuracy=scored.accuracy if scored else None,
                accuracy_change=scored.change_from(standard, seed=0) if scored and standard else None,
                size_bytes=inspect(variants[stage]).size_bytes,
                kept=decisions[stage].kept,
                rejected=decisions[stage].rejected,
            )
        )
    return Fix(
        explanation=explanation,
        stages=tuple(stages),
        output=str(output),
        result=final.compared.comparison,
        standard_latency_ms=final.result.latency_ms(STANDARD),
        standard_accuracy=standard.accuracy if standard else None,
        standard_size_bytes=final.compared.comparison.standard.size_bytes,
    )


def _ratio(result: ContestResult, numerator: str, denominator: str) -> Interval:
    return Interval(1.0, 1.0, 1.0) if numerator == denominator else result.ratio(numerator, denominator)
