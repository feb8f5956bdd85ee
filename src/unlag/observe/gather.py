"""Bench and Comparison -> Evidence: profiles, executed graphs and aligned weights of both sides."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from unlag.errors import Missing, UnlagError
from unlag.measure.bench import Bench
from unlag.measure.compare import STANDARD, VARIANT
from unlag.measure.comparison import Comparison
from unlag.measure.contest import Contest
from unlag.model.facts import GraphFacts, facts_of
from unlag.model.graph import read_model
from unlag.model.variant import Variant
from unlag.observe.align import align_weights
from unlag.observe.evidence import Evidence, Side, WeightSource
from unlag.runtimes.contract import Profile, find_runtime

PROFILED_RUNS = 8


def observe(bench: Bench, comparison: Comparison) -> Evidence:
    """Profile both sides apart from the timed runs, and read the graphs in the files and those that really run."""
    case = bench.case
    contenders = {STANDARD: case.standard, VARIANT: case.variant}
    latency = {STANDARD: comparison.standard.latency_ms, VARIANT: comparison.variant.latency_ms}
    sides = {}
    with bench.contest(contenders) as contest:
        for position, (name, variant) in enumerate(contenders.items()):
            bench.progress(f"profiling: the {name}", position / len(contenders))
            sides[name] = _side(contest, name, variant, latency[name].median)
    return Evidence(
        host=comparison.host,
        standard=sides[STANDARD],
        variant=sides[VARIANT],
        gap_ms=comparison.gap_ms,
        accuracy_change=comparison.accuracy_change,
        weights=_aligned(case.standard, case.variant),
    )


def _side(contest: Contest, name: str, variant: Variant, latency_ms: float) -> Side:
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
        made = contest.profile(name, PROFILED_RUNS, Path(folder))
        executed = _facts(Path(made.executed)) if made.executed else Missing(made.executed_missing)
    return Side(
        variant=variant,
        graph=_facts(Path(variant.path)),
        executed=executed,
        profile=_scaled(made.profile, latency_ms),
        placement=find_runtime(variant.runtime).placement(made.profile, variant),
        latency_ms=latency_ms,
    )


def _facts(path: Path) -> GraphFacts | Missing:
    try:
        return facts_of(read_model(path))
    except UnlagError as error:
        return Missing(f"no graph could be read: {error.message}")


def _scaled(profile: Profile, latency_ms: float) -> Profile:
    """Operators' times as they are without the profiler, whose own cost is spread evenly over them."""
    factor = latency_ms / profile.run_ms if profile.run_ms else 1.0
    operators = tuple(msgspec.structs.replace(op, time_ms=op.time_ms * factor) for op in profile.operators)
    return msgspec.structs.replace(profile, operators=operators, run_ms=latency_ms)


def _aligned(standard: Variant, variant: Variant) -> dict[str, WeightSource]:
    """Weights of the variant found in the standard; none where one of the two is no ONNX file."""
    try:
        models = read_model(Path(standard.path)), read_model(Path(variant.path))
    except UnlagError:
        return {}
    return align_weights(*models)
