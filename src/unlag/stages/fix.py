"""Explanation -> Fix: the three stages, then one contest in which all of them meet the standard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from unlag.errors import UsageError
from unlag.measure.bench import Bench, inspect
from unlag.measure.compare import STANDARD, Compared
from unlag.measure.comparison import Comparison
from unlag.measure.statistics import SMALLEST_EFFECT
from unlag.model.case import Case
from unlag.model.draft import Observed
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.proof.explanation import Explanation
from unlag.runtimes.onnxruntime.qualcomm import check_available
from unlag.stages.final import STAGES, Final, final_contest
from unlag.stages.fixed import NOTHING, Decision, Fix, Kept, OtherRuntime, Rejected, StageName, StageResult
from unlag.stages.goal import Goal, goal_of
from unlag.stages.gpu import fit_gpu, on_gpu
from unlag.stages.graph import restructure_graph
from unlag.stages.hardware import fit_hardware
from unlag.stages.journal import Journal
from unlag.stages.native import choose_recipe, fit_settings, is_native, mend, runtime_of
from unlag.stages.other_runtimes import try_other_runtimes
from unlag.stages.plan import Plan
from unlag.stages.quantization import retune_quantization, tune_quantization
from unlag.stages.search import Workshop, in_words
from unlag.stages.use import with_use
from unlag.stages.winners import helps
from unlag.stages.worth import leave_one_out

SAME_TASK = 0.5
"""Cosine to the standard's outputs. The article's Flash, which misses its attention scale, has 0.66."""

REBUILT = "rebuilt from the standard"


@dataclass(frozen=True)
class Fixed:
    """The record of a fix, and the model that goes out (still in the working folder)."""

    record: Fix
    variant: Variant
    beside: tuple[Path, ...] = ()
    """Files that go out beside the model."""


@dataclass
class _Staged:
    """Plans and decisions by stage, as the search goes on."""

    plans: dict[StageName, Plan] = field(default_factory=lambda: {"baseline": Plan()})
    decisions: dict[StageName, Decision] = field(default_factory=lambda: {"baseline": NOTHING})
    runtimes: tuple[OtherRuntime, ...] = ()

    def add(self, stage: StageName, plan: Plan, decision: Decision) -> None:
        """Go on from a plan; a second search of a stage adds to what the first decided."""
        self.plans[stage] = plan
        self.decisions[stage] = self.decisions.get(stage, NOTHING) + decision


def fix_variant(  # noqa: PLR0913 - a fix has these parts
    bench: Bench,
    compared: Compared,
    explanation: Explanation,
    folder: Path,
    output: Path,
    *,
    observed: Observed | None = None,
    journal: Journal | None = None,
) -> Fixed:
    """Run the three stages in ``folder``; ``output`` is only named in the record."""
    _check_same_task(compared)
    workshop = Workshop(bench, compared, folder, observed=observed, journal=journal)
    goal = goal_of(bench.case)
    staged = _stages(workshop, goal)
    variants = {name: workshop.make(plan) for name, plan in staged.plans.items()}
    final = final_contest(workshop.within(0.85, 0.95), variants)
    notes: tuple[str, ...] = tuple(note for decision in staged.decisions.values() for note in decision.notes)
    for plan, note in _fallbacks(staged, final, goal):
        notes += (note,)
        staged.decisions["hardware"] = _taken_back(staged.decisions["hardware"], note)
        variants["hardware"] = workshop.make(plan)
        final = final_contest(workshop.within(0.95, 1.0), variants)
        if _holds(final, goal):
            break
    notes += _unlabeled_note(final.compared.comparison)
    record = _record(explanation, final, variants, staged.decisions, output)
    record = msgspec.structs.replace(record, notes=notes, runtimes=staged.runtimes)
    return Fixed(with_use(bench.within(0.97, 1.0), record, variants["hardware"]), variants["hardware"])


def _stages(workshop: Workshop, goal: Goal) -> _Staged:
    """Quantization, graph, hardware: each goes on from what the one before has kept."""
    staged = _Staged()
    if is_native(workshop):
        staged.add("quantization", *choose_recipe(workshop.within(0.0, 0.3), Plan(), goal))
        staged.add("graph", *mend(workshop.within(0.3, 0.6), staged.plans["quantization"], goal))
        staged.add(
            "hardware", *fit_settings(workshop.within(0.6, 0.74), staged.plans["graph"], runtime_of(workshop), goal)
        )
        return _finished(workshop, staged, goal)
    # a variant that runs elsewhere has no graph to go on from
    begin = Plan(from_standard=workshop.bench.case.variant.runtime != DEFAULT_RUNTIME)
    quantized = tune_quantization(workshop.within(0.0, 0.25), begin, goal)
    staged.add("quantization", *quantized)
    staged.add("graph", *restructure_graph(workshop.within(0.25, 0.45), quantized[0], goal))
    plan, decision = _rebuild(workshop.within(0.45, 0.55), staged.plans["graph"], goal)
    staged.add("graph", plan, decision)
    staged.add("hardware", *retune_quantization(workshop.within(0.55, 0.65), plan, goal))
    fit = fit_gpu if workshop.bench.case.target == "gpu" else fit_hardware
    staged.add("hardware", *fit(workshop.within(0.65, 0.74), staged.plans["hardware"], goal))
    return _finished(workshop, staged, goal)


def _finished(workshop: Workshop, staged: _Staged, goal: Goal) -> _Staged:
    """Other runtimes, where they may be used; then what each part that was kept is worth in the end."""
    if workshop.bench.case.any_runtime:
        part = workshop.within(0.74, 0.78)
        plan, decision, staged.runtimes = try_other_runtimes(part, staged.plans["hardware"], goal)
        staged.add("hardware", plan, decision)
    plan, staged.decisions = leave_one_out(
        workshop.within(0.78, 0.85), staged.plans["hardware"], staged.decisions, goal
    )
    staged.plans["hardware"] = plan
    return staged


def _rebuild(workshop: Workshop, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    """The same precision and rewrites on the standard's own graph, for what no remedy could mend in the variant's."""
    if workshop.bench.case.alone:
        return current, NOTHING
    rebuilt = msgspec.structs.replace(current, from_standard=True)
    tried = workshop.within(0.0, 0.3).search("graph, rebuilt", current, {REBUILT: rebuilt})
    trial = tried.trials.get(REBUILT)
    if trial is None or not helps(trial, tried, goal):
        why = in_words(trial) if trial is not None else tried.failed[0].reason
        return current, Decision((), (Rejected(REBUILT, f"the variant's own graph is as good: {why}"),))
    plan, decision = restructure_graph(workshop.within(0.3, 1.0), rebuilt, goal)
    return plan, Decision((Kept(REBUILT, in_words(trial)),), ()) + decision


def for_target(case: Case) -> Case:
    """The case as its target needs it.

    Raises:
        UsageError: what the target needs is missing here.
    """
    if case.target == "gpu":
        return on_gpu(case)
    if case.target == "npu":
        check_available("qnn")
        if case.objective == "throughput":
            raise UsageError("rows a second of an NPU can't be measured without it", hint="--objective latency or size")
    return case


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


def _holds(final: Final, goal: Goal) -> bool:
    """Whether the last stage's model is neither slower than the standard nor outside the budget."""
    return final.compared.comparison.verdict.speed != "slower" and final.allowed("hardware", goal)


def _fallbacks(staged: _Staged, final: Final, goal: Goal) -> list[tuple[Plan, str]]:
    """What goes out instead, the first that holds, and why; nothing where the last stage's model is the best."""
    best = final.best(goal)
    to_standard = final.ratio(best)
    allowed, slower = final.allowed(best, goal), to_standard.low > 1 + SMALLEST_EFFECT
    if allowed and not slower:
        if staged.plans[best] == staged.plans["hardware"]:
            return []
        behind = final.ratio("hardware", best).estimate
        why = f"ended at {behind:.2f}× its time" if final.allowed("hardware", goal) else "lost more than the budget"
        return [(staged.plans[best], f"what came after it {why}, so the model of the stage {best} goes out")]
    why = "nothing that was tried is accurate enough"
    if slower:
        why = f"nothing that was tried beats the standard on this machine (best: {to_standard.estimate:.2f}× its time)"
    last, plain = staged.plans["hardware"], Plan(from_standard=True)
    rewritten = plain if last.runtime else msgspec.structs.replace(plain, remedies=last.remedies, options=last.options)
    found = [(rewritten, f"{why}, so the standard goes out in its own precision, with these rewrites")]
    return [*(found if rewritten != plain else []), (plain, f"{why}, so the standard itself goes out")]


def _taken_back(decision: Decision, note: str) -> Decision:
    """The last stage's decision once its plan was given up."""
    given_up = tuple(Rejected(kept.remedy, f"given up: {note}") for kept in decision.kept)
    return Decision((), (*decision.rejected, *given_up))


def _record(
    explanation: Explanation,
    final: Final,
    variants: Mapping[StageName, Variant],
    decisions: Mapping[StageName, Decision],
    output: Path,
) -> Fix:
    standard = final.compared.scores.get(STANDARD)
    stages = []
    for stage in STAGES:
        scored = final.scored(stage)
        stages.append(
            StageResult(
                name=stage,
                latency_ms=final.result.latency_ms(final.contenders[stage]),
                speedup_over_baseline=final.ratio("baseline", stage),
                slowdown_to_standard=final.ratio(stage),
                accuracy=scored.accuracy if scored else None,
                accuracy_change=final.change(stage),
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
