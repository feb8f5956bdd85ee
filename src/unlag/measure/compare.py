"""Case -> Comparison: the whole contest of a standard, its own copy, and a variant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from unlag.errors import Missing, UsageError
from unlag.measure.accuracy import Scored, agreement, score
from unlag.measure.comparison import Accuracy, Comparison, Latency, Measured, Verdict
from unlag.measure.contest import Contest, ContestResult
from unlag.measure.host import Host, read_host
from unlag.measure.monitor import Monitor, MonitorLog
from unlag.measure.progress import Progress, silent
from unlag.measure.schedule import Protocol
from unlag.measure.statistics import (
    AccuracyVerdict,
    Interval,
    SpeedVerdict,
    accuracy_verdict,
    speed_verdict,
)
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Agreement, Shape, Workload, WorkloadRequest
from unlag.runtimes.contract import Inspection, Placement, find_runtime
from unlag.workloads.contract import load_workload

STANDARD, VARIANT, CONTROL = "standard", "variant", "control"

POOR_AGREEMENT = 0.99
"""Cosine of all outputs below which a variant without labels is said to compute something else."""


class Bench(msgspec.Struct, frozen=True):
    """The conditions that are identical for all contenders."""

    cores: tuple[int, ...]
    threads: int


def bench_of(case: Case, host: Host) -> Bench:
    """Cores to pin to and threads to use: what affinity and quota leave, unless the case says otherwise."""
    allowed = host.allowance.affinity
    cores = tuple(range(host.usable_cores)) if isinstance(allowed, Missing) else allowed[: host.usable_cores]
    return Bench(cores=cores, threads=case.threads or len(cores))


def inspect(variant: Variant) -> Inspection:
    """Check a variant's options and look at its file.

    Raises:
        UsageError: an unknown option, an absent runtime or provider, or a file that can't be read.
    """
    runtime = find_runtime(variant.runtime)
    runtime.check(variant)
    return runtime.inspect(variant)


def workload_of(case: Case, shape: Shape) -> Workload:
    """The case's workload, made for the standard's inputs at one shape."""
    inspection = inspect(case.standard)
    request = WorkloadRequest(
        argument="", signature=inspection.signature, shape=shape, dims=case.dims, seed=case.seed, limits=inspection.limits
    )
    return load_workload(case.workload, request)


def protocol_of(case: Case) -> Protocol:
    """The contest's rules for a case."""
    return Protocol(
        rounds=case.rounds, max_rounds=max(case.rounds, case.max_rounds), patience_s=case.patience_s, seed=case.seed
    )


def compare(case: Case, progress: Progress = silent) -> Comparison:
    """Measure standard and variant at each of the case's shapes; the first shape's row carries the others.

    Raises:
        UsageError: a variant or the workload can't be used, or their outputs can't be compared.
        ContenderError: one of them crashes, hangs or is killed.
    """
    if not case.shapes:
        raise UsageError("no shape to measure at", hint="--shapes 1x128")
    host = read_host()
    rows = [_compare_at(case, shape, host, progress) for shape in case.shapes]
    return msgspec.structs.replace(rows[0], other_shapes=tuple(rows[1:]))


def _compare_at(case: Case, shape: Shape, host: Host, progress: Progress) -> Comparison:
    inspections = {STANDARD: inspect(case.standard), VARIANT: inspect(case.variant)}
    bench = bench_of(case, host)
    progress("preparing the workload")
    workload = workload_of(case, shape)
    contenders = {STANDARD: case.standard, VARIANT: case.variant, CONTROL: case.standard}
    with (
        Monitor(bench.cores) as monitor,
        Contest(
            contenders,
            workload.feed,
            cores=bench.cores,
            threads=bench.threads,
            protocol=protocol_of(case),
            progress=progress,
        ) as contest,
    ):
        agreed = _check_outputs(contest, workload, progress)
        result = contest.measure(lambda so_far: _verdict_of(so_far)[2] != "inconclusive")
        scored = _evaluate(contest, workload)
        placements = {name: _placement(contest, name, contenders[name]) for name in (STANDARD, VARIANT)}
    slowdown, noise, speed = _verdict_of(result)
    change = scored[VARIANT].change_from(scored[STANDARD], case.seed) if scored else None
    accuracy: AccuracyVerdict = accuracy_verdict(change) if change else "not_measured"
    side = partial(_measured, result, inspections, placements, scored)
    return Comparison(
        host=host,
        workload=case.workload,
        shape=workload.shape,
        standard=side(STANDARD, case.standard),
        variant=side(VARIANT, case.variant),
        slowdown=slowdown,
        noise=noise,
        accuracy_change=change,
        agreement=agreed,
        verdict=Verdict(speed, accuracy),
        rounds=len(result.counted),
        disturbed_rounds=len(result.disturbed),
        monitor=monitor.log,
        samples=result.samples,
        warnings=tuple(_warnings(result, agreed, change, monitor.log, placements)),
    )


def _check_outputs(contest: Contest, workload: Workload, progress: Progress) -> Agreement | None:
    """Both sides' outputs on the agreement runs, before anything is timed: a wrong pair stops here."""
    if not workload.agreement:
        return None
    progress("checking that both give usable outputs")
    answers = {name: contest.answers(name, workload.agreement) for name in (STANDARD, VARIANT)}
    return agreement(answers[STANDARD], answers[VARIANT])


def _evaluate(contest: Contest, workload: Workload) -> dict[str, Scored]:
    evaluation = workload.evaluation
    if evaluation is None:
        return {}
    standard = score(contest, STANDARD, evaluation)
    return {STANDARD: standard, VARIANT: score(contest, VARIANT, evaluation, standard.rows)}


def _verdict_of(result: ContestResult) -> tuple[Interval, Interval, SpeedVerdict]:
    """Slowdown, noise floor and verdict. Where disturbed rounds had to count, the noise is all the control's range."""
    slowdown = result.ratio(VARIANT, STANDARD)
    noise = result.ratio(CONTROL, STANDARD)
    if not result.quiet:
        ratios = result.medians_ms(CONTROL) / result.medians_ms(STANDARD)
        noise = Interval(noise.estimate, min(noise.low, float(ratios.min())), max(noise.high, float(ratios.max())))
    return slowdown, noise, speed_verdict(slowdown, noise)


def _placement(contest: Contest, name: str, variant: Variant) -> Placement | Missing:
    """Where the nodes ran, when something other than the CPU was asked for."""
    if variant.options.get("provider", "cpu") == "cpu":
        return Missing("only the CPU was asked for")
    return contest.placement(name)


def _measured(  # noqa: PLR0913 - the parts of one side come from different measurements
    result: ContestResult,
    inspections: dict[str, Inspection],
    placements: dict[str, Placement | Missing],
    scored: dict[str, Scored],
    name: str,
    variant: Variant,
) -> Measured:
    sample = result.samples[name]
    latency = result.latency_ms(name)
    accuracy: Accuracy | None = scored[name].accuracy if name in scored else None
    return Measured(
        spec=variant.spec,
        runtime=variant.runtime,
        latency_ms=Latency(latency.estimate, latency.low, latency.high),
        accuracy=accuracy,
        size_bytes=inspections[name].size_bytes,
        peak_memory_bytes=sample.peak_memory_bytes,
        load_ms=float(np.median([launch.load_ms for launch in sample.launches])),
        first_run_ms=float(np.median([launch.first_run_ms for launch in sample.launches])),
        warmup_runs=max(launch.warmup_runs for launch in sample.launches),
        steady=all(launch.steady for launch in sample.launches),
        placement=placements[name],
    )


def _warnings(
    result: ContestResult,
    agreed: Agreement | None,
    change: Interval | None,
    log: MonitorLog,
    placements: dict[str, Placement | Missing],
) -> list[str]:
    warnings = []
    if result.disturbed:
        reasons = sorted({t.disturbed for s in result.samples.values() for t in s.turns if t.disturbed})
        counted = "" if result.quiet else "; too few quiet rounds, so all count and the noise floor is widened"
        warnings.append(f"{len(result.disturbed)} rounds were disturbed ({reasons[0]}){counted}")
    for name, sample in result.samples.items():
        if not all(launch.steady for launch in sample.launches):
            warnings.append(f"the {name} never became steady while it was warmed up")
    if not all(launch.pinned for sample in result.samples.values() for launch in sample.launches):
        warnings.append("this system can't pin processes to cores")
    if agreed is not None and change is None and agreed.cosine < POOR_AGREEMENT:
        warnings.append(f"the variant's outputs are not the standard's (cosine {agreed.cosine:.3f}); no labels say which is better")
    warnings += _fallbacks(placements)
    if log.summary.throttled is True:
        warnings.append("the CPU was throttled, by heat or by its quota, while it was measured")
    return warnings


def _fallbacks(placements: dict[str, Placement | Missing]) -> Sequence[str]:
    lines = []
    for name, placement in placements.items():
        if isinstance(placement, Missing):
            continue
        fallen = sum(count for provider, count in placement.nodes.items() if provider != placement.requested)
        if fallen:
            lines.append(f"{fallen} of {sum(placement.nodes.values())} nodes of the {name} fell back from {placement.requested}")
    return lines
