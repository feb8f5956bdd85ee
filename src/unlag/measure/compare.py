"""Case -> Comparison: the whole contest of a standard, its own copy, and a variant."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from unlag.errors import ContenderError, Missing, RunError
from unlag.measure.accuracy import Scored, agreement, score
from unlag.measure.bench import Bench, first_shape, inspect, open_bench
from unlag.measure.comparison import AskedFor, Comparison, Latency, Measured, Verdict
from unlag.measure.contest import Contest, ContestResult
from unlag.measure.monitor import Monitor, MonitorLog
from unlag.measure.progress import Progress, section, silent
from unlag.measure.statistics import Interval, SpeedVerdict, accuracy_verdict, speed_verdict
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Agreement, Evaluation
from unlag.runtimes.contract import Placement
from unlag.runtimes.onnxruntime.qualcomm import is_simulated

STANDARD, VARIANT, CONTROL = "standard", "variant", "control"

POOR_AGREEMENT = 0.99
"""Cosine of all outputs below which a variant without labels is said to compute something else."""


@dataclass(frozen=True)
class Compared:
    """A comparison, and the scores it rests on, so that nobody has to run a data set twice."""

    comparison: Comparison
    scores: Mapping[str, Scored]


def compare(case: Case, progress: Progress = silent) -> Comparison:
    """Measure standard and variant at each of the case's shapes; the first shape's row carries the others.

    Raises:
        UsageError: a variant or the workload can't be used, or their outputs can't be compared.
        ContenderError: one of them crashes, hangs or is killed.
    """
    first_shape(case)
    inspect(case.variant)
    rows: list[Comparison] = []
    for index, shape in enumerate(case.shapes):
        part = section(progress, index / len(case.shapes), (index + 1) / len(case.shapes))
        bench = open_bench(case, shape, part)
        if bench.workload.shape not in {row.shape for row in rows}:  # the workload or the model may fix the shape
            rows.append(compare_at(bench).comparison)
    return msgspec.structs.replace(rows[0], other_shapes=tuple(rows[1:]))


def compare_at(bench: Bench) -> Compared:
    """The comparison on one bench."""
    case = bench.case
    contenders = {STANDARD: case.standard, VARIANT: case.variant, CONTROL: case.standard}
    timed = bench.within(0.1, 0.6) if bench.workload.evaluation else bench
    with Monitor(bench.cores) as monitor, timed.contest(contenders) as contest:
        with _naming_inputs(bench):
            agreed = check_outputs(contest, bench)
        result = contest.measure(lambda so_far: speed_of(so_far)[2] != "inconclusive")
        if bench.workload.evaluation:
            bench.progress("accuracy", 0.6)
        scores = evaluate(contest, bench.workload.evaluation, (STANDARD,) if case.alone else (STANDARD, VARIANT))
        if scores and case.alone:
            scores[VARIANT] = scores[STANDARD]
        placements = {name: placement_of(contest, name, contenders[name]) for name in (STANDARD, VARIANT)}
    return Compared(comparison_of(bench, result, scores, agreed, monitor.log, placements), scores)


def comparison_of(  # noqa: PLR0913, PLR0917 - a comparison is made of these parts
    bench: Bench,
    result: ContestResult,
    scores: Mapping[str, Scored],
    agreed: Agreement | None,
    log: MonitorLog,
    placements: Mapping[str, Placement | Missing],
) -> Comparison:
    """Put together what a contest with standard, variant and control has measured."""
    case = bench.case
    slowdown, noise, speed = speed_of(result)
    change = scores[VARIANT].change_from(scores[STANDARD], case.seed) if scores else None
    sides = {
        name: _measured(result, name, variant, scores.get(name), placements[name])
        for name, variant in ((STANDARD, case.standard), (VARIANT, case.variant))
    }
    return Comparison(
        host=bench.host,
        workload=case.workload,
        shape=bench.workload.shape,
        standard=sides[STANDARD],
        variant=sides[VARIANT],
        slowdown=slowdown,
        noise=noise,
        accuracy_change=change,
        agreement=agreed,
        verdict=Verdict(speed, accuracy_verdict(change) if change else "not_measured"),
        rounds=len(result.counted),
        disturbed_rounds=len(result.disturbed),
        monitor=log,
        samples=result.samples,
        warnings=(
            *_round_warnings(result, log),
            *_input_warnings(bench),
            *_output_warnings(agreed, change),
            *_fallbacks(placements),
            *_simulated(case),
        ),
        asked_for=AskedFor(tuple(map(str, case.shapes)), case.dims, case.threads),
    )


def check_outputs(contest: Contest, bench: Bench) -> Agreement | None:
    """Both sides' outputs on the agreement runs, before anything is timed: a wrong pair stops here."""
    feeds = bench.workload.agreement
    if not feeds:
        return None
    bench.progress("checking that both give usable outputs")
    return agreement(contest.answers(STANDARD, feeds), contest.answers(VARIANT, feeds))


@contextlib.contextmanager
def _naming_inputs(bench: Bench) -> Iterator[None]:
    """Where a model refuses inputs that were made up for it, say which they were."""
    try:
        yield
    except RunError as error:
        invented = bench.workload.invented
        if not invented:
            raise
        raise ContenderError(
            f"the made-up inputs ({invented}) do not fit: {error.message}",
            hint="give yours with --workload FILE.npz, or their sizes with --shapes BxS and --dim NAME=VALUE",
        ) from error


def evaluate(contest: Contest, evaluation: Evaluation | None, names: Sequence[str]) -> dict[str, Scored]:
    """Scores of the named contenders, the standard first; nothing without a labelled workload."""
    if evaluation is None:
        return {}
    scores: dict[str, Scored] = {}
    for name in names:
        scores[name] = score(contest, name, evaluation, scores[STANDARD].rows if scores else None)
    return scores


def speed_of(result: ContestResult) -> tuple[Interval, Interval, SpeedVerdict]:
    """Slowdown, noise floor and verdict. Where disturbed rounds had to count, the noise is all the control's range.

    Rounds of one launch share its memory layout, so their spread alone is too narrow: the slowdown's interval is
    widened by how far the control, another process of the same model, came out from the standard.
    """
    noise = result.ratio(CONTROL, STANDARD)
    slowdown = result.ratio(VARIANT, STANDARD).widened(math.log(noise.estimate))
    if not result.quiet:
        ratios = result.medians_ms(CONTROL) / result.medians_ms(STANDARD)
        noise = Interval(noise.estimate, min(noise.low, float(ratios.min())), max(noise.high, float(ratios.max())))
    return slowdown, noise, speed_verdict(slowdown, noise)


def placement_of(contest: Contest, name: str, variant: Variant) -> Placement | Missing:
    """Where the nodes ran, when something other than the CPU was asked for."""
    if variant.options.get("provider", "cpu") == "cpu":
        return Missing("only the CPU was asked for")
    return contest.placement(name)


def _measured(
    result: ContestResult, name: str, variant: Variant, scored: Scored | None, placement: Placement | Missing
) -> Measured:
    sample = result.samples[name]
    latency = result.latency_ms(name)
    return Measured(
        spec=variant.spec,
        runtime=variant.runtime,
        latency_ms=Latency(latency.estimate, latency.low, latency.high),
        accuracy=scored.accuracy if scored else None,
        size_bytes=inspect(variant).size_bytes,
        peak_memory_bytes=sample.peak_memory_bytes,
        load_ms=float(np.median([launch.load_ms for launch in sample.launches])),
        first_run_ms=float(np.median([launch.first_run_ms for launch in sample.launches])),
        warmup_runs=max(launch.warmup_runs for launch in sample.launches),
        steady=all(launch.steady for launch in sample.launches),
        placement=placement,
    )


def _round_warnings(result: ContestResult, log: MonitorLog) -> list[str]:
    warnings = []
    launches = {name: sample.launches for name, sample in result.samples.items()}
    if result.disturbed:
        reasons = sorted({t.disturbed for s in result.samples.values() for t in s.turns if t.disturbed})
        counted = "" if result.quiet else "; too few quiet rounds, so all count and the noise floor is widened"
        warnings.append(f"{len(result.disturbed)} rounds were disturbed ({reasons[0]}){counted}")
    warnings += [
        f"the {name} never became steady while it was warmed up"
        for name, started in launches.items()
        if not all(launch.steady for launch in started)
    ]
    if not all(launch.pinned for started in launches.values() for launch in started):
        warnings.append("this system can't pin processes to cores")
    if log.summary.throttled is True:
        warnings.append("the CPU was throttled, by heat or by its quota, while it was measured")
    return warnings


def _input_warnings(bench: Bench) -> list[str]:
    """Inputs that the variant takes in another type than the standard: workers cast them, outside of what is timed."""
    wanted = {info.name: info.dtype for info in inspect(bench.case.variant).signature.inputs}
    given = {info.name: info.dtype for info in inspect(bench.case.standard).signature.inputs}
    return [
        f"input {name!r} is {given[name]} in the standard and {dtype} in the variant: it was cast before the timed runs"
        for name, dtype in wanted.items()
        if "unknown" not in {dtype, given.get(name, dtype)} and dtype != given.get(name, dtype)
    ]


def _output_warnings(agreed: Agreement | None, change: Interval | None) -> list[str]:
    if agreed is None or change is not None or agreed.cosine >= POOR_AGREEMENT:
        return []
    return [f"the variant's outputs are not the standard's (cosine {agreed.cosine:.3f}); no labels say which is better"]


def _simulated(case: Case) -> list[str]:
    sides = ((STANDARD, case.standard), (VARIANT, case.variant))
    return [
        f"the {name} ran in the NPU's simulator on this CPU: its times are no times of an NPU"
        for name, variant in sides
        if is_simulated(variant.options)
    ]


def _fallbacks(placements: Mapping[str, Placement | Missing]) -> list[str]:
    lines = []
    for name, placement in placements.items():
        if isinstance(placement, Missing):
            continue
        total = sum(placement.nodes.values())
        fallen = total - placement.nodes.get(placement.requested, 0)
        if fallen:
            lines.append(f"{fallen} of {total} nodes of the {name} fell back from {placement.requested}")
    return lines
