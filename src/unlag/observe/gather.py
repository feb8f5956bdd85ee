"""Bench and Comparison -> Evidence: profiles, executed graphs and aligned weights of both sides."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import msgspec

from unlag.errors import Missing, UnlagError
from unlag.measure.bench import Bench
from unlag.measure.ceilings import ceilings_of
from unlag.measure.compare import STANDARD, VARIANT
from unlag.measure.comparison import Comparison, Measured
from unlag.measure.contest import Contest
from unlag.model.graph import read_model
from unlag.model.variant import Variant
from unlag.observe.align import align_weights
from unlag.observe.blocks import find_blocks
from unlag.observe.evidence import Evidence, Side, WeightSource
from unlag.observe.match import match_tensors
from unlag.observe.values import Sketches, attention_of, sketch_tensors, values_of
from unlag.runtimes.contract import Profile, find_runtime

PROFILED_RUNS = 8


def observe(bench: Bench, comparison: Comparison) -> Evidence:
    """Profile both sides apart from the timed runs, and read the graphs in the files and those that really run."""
    case = bench.case
    contenders = {STANDARD: case.standard, VARIANT: case.variant}
    measured = {STANDARD: comparison.standard, VARIANT: comparison.variant}
    sides = {}
    with bench.contest(contenders) as contest:
        for position, (name, variant) in enumerate(contenders.items()):
            bench.progress(f"profiling: the {name}", position / 2 / len(contenders))
            sides[name] = _side(contest, name, variant, measured[name])
    bench.progress("looking at the tensors inside both", 0.5)
    return with_values(
        Evidence(
            host=comparison.host,
            standard=sides[STANDARD],
            variant=sides[VARIANT],
            gap_ms=comparison.gap_ms,
            accuracy_change=comparison.accuracy_change,
            weights=_aligned(case.standard, case.variant),
            input_shapes={name: array.shape for name, array in bench.workload.feed.items()},
            threads=bench.threads,
            ceilings=ceilings_of(bench.within(0.4, 0.5)),
        ),
        sketch_tensors(bench, case.standard),
        sketch_tensors(bench, case.variant),
    )


def with_values(evidence: Evidence, standard: Sketches | Missing, variant: Sketches | Missing) -> Evidence:
    """The evidence with what both sides' tensors held, which belong together, and blocks between them."""
    ours, theirs = (
        msgspec.structs.replace(side, values=values_of(sketches))
        for side, sketches in ((evidence.standard, standard), (evidence.variant, variant))
    )
    evidence = msgspec.structs.replace(evidence, standard=ours, variant=theirs)
    if isinstance(standard, Missing) or isinstance(variant, Missing):
        return evidence
    pairs = match_tensors(standard, variant)
    return msgspec.structs.replace(
        evidence,
        pairs=pairs,
        attention=attention_of(evidence, standard, variant),
        blocks=find_blocks(ours, theirs, pairs),
    )


def _side(contest: Contest, name: str, variant: Variant, measured: Measured) -> Side:
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
        made = contest.profile(name, PROFILED_RUNS, Path(folder))
        runtime = find_runtime(variant.runtime)
        executed = runtime.read_executed(Path(made.executed)) if made.executed else Missing(made.executed_missing)
    return Side(
        variant=variant,
        graph=runtime.read_graph(variant),
        executed=executed,
        profile=_scaled(made.profile, measured.latency_ms.median),
        placement=runtime.placement(made.profile, variant),
        latency_ms=measured.latency_ms.median,
        load_ms=measured.load_ms,
        first_run_ms=measured.first_run_ms,
    )


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
    found = align_weights(*models)
    del models
    gc.collect()  # models refer to themselves in circles: these would stay beside the next ones
    return found
