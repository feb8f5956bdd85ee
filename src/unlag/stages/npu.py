"""``--target npu``: from a standard to a model that the NPU runs in one piece, judged in the NPU's simulator.

No device is needed, and nothing is timed: the simulator's time is none of an NPU. So candidates are tried in the order
of their bits, and the first one that the compiler takes whole and that is accurate enough goes out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from unlag.errors import UnlagError, UsageError
from unlag.measure.bench import Bench
from unlag.measure.compare import STANDARD, Compared, compare_at
from unlag.measure.statistics import Interval
from unlag.model.draft import Observed
from unlag.model.graph import read_model, save_model
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.proof.explain import nothing_to_explain
from unlag.rewrites.fix_dimensions import fix_dimensions
from unlag.rewrites.quantize_npu import quantize_by_default
from unlag.runtimes.onnxruntime.qualcomm import SOC, TRACE, WHOLE, Compilation, runtime_version
from unlag.stages.fix import Fixed
from unlag.stages.fixed import Fallback, Fix, Kept, Npu, OnNpu
from unlag.stages.goal import goal_of
from unlag.stages.journal import Journal
from unlag.stages.npu_accuracy import Judge, judge_of, static_bench
from unlag.stages.npu_models import calibration_of, compile_model, npu_options, prepare
from unlag.stages.npu_search import Candidate, Search, choose
from unlag.stages.start import keep_start, read_start

FEWEST_ROUNDS = 2
NAIVE = "the standard, quantized by ONNX Runtime's defaults"

SAME_GRAPH = 0.9999
"""Cosine to the standard's outputs that rewriting its float graph has to keep."""

BEFORE_S, FEWEST_BEFORE = 300.0, 64
"""What scoring the model that came in may take in the simulator; on fewer items an interval says nothing."""

NOT_MEASURED = (
    "how long a run takes on the NPU and what it draws: the simulator runs on this CPU, and its times are no NPU's",
    "whether fewer bits would be faster there: what has the fewest bits is tried first, and nothing is timed",
)


def fix_for_npu(bench: Bench, folder: Path, output: Path, journal: Journal | None = None) -> Fixed:
    """Make the standard run on the NPU; files go into ``folder``, and ``output`` is only named in the record.

    What the journal knows of an interrupted run is not measured again.

    Raises:
        UsageError: nothing can be compiled for the NPU here, the standard or the workload can't be used, or no
            candidate can be compiled.
    """
    case = bench.case
    on_cpu = Variant(case.standard.runtime, case.standard.path, _for_cpu(case.standard))
    options = npu_options({**case.standard.options, **case.variant.options})
    static = static_bench(dataclasses.replace(bench, case=msgspec.structs.replace(case, standard=on_cpu)))
    journal = journal or Journal()
    compared = _measured(static.within(0.0, 0.25), journal)
    judge = judge_of(static, compared.scores.get(STANDARD), journal)
    before = _before(static.within(0.25, 0.4), judge, _defaults(options), folder)
    prepared = folder / "prepared.onnx"
    changed = _prepare(static.within(0.4, 0.45), judge, prepared)
    search = Search(static.within(0.45, 1.0), goal_of(case), judge, options, folder)
    chosen = choose(search, prepared)
    record = _record(compared, _npu(search, chosen, before, changed), search.notes, output)
    return Fixed(record, Variant(DEFAULT_RUNTIME, str(chosen.path), options), beside=_compiled_files(chosen))


def _for_cpu(standard: Variant) -> dict[str, str]:
    """The standard's options without those that put it on the NPU: it is judged on the CPU."""
    return {key: value for key, value in standard.options.items() if not key.startswith("provider")}


def _defaults(options: Mapping[str, str]) -> dict[str, str]:
    """Options as the provider has them by itself."""
    return {key: value for key, value in options.items() if key not in WHOLE}


def _measured(bench: Bench, journal: Journal) -> Compared:
    """The standard by itself: its scores, and roughly its time on this CPU, which decides nothing here."""
    known = read_start(bench, journal)
    if known is not None:
        return known[0]
    case = msgspec.structs.replace(
        bench.case, variant=bench.case.standard, rounds=FEWEST_ROUNDS, max_rounds=FEWEST_ROUNDS
    )
    compared = compare_at(dataclasses.replace(bench, case=case))
    keep_start(journal, compared, nothing_to_explain(compared.comparison), Observed())
    return compared


def _before(bench: Bench, judge: Judge, options: Mapping[str, str], folder: Path) -> OnNpu:
    """What the compiler makes of the variant as it is; of a naively quantized standard, where there is none."""
    alone = bench.case.variant.path == bench.case.standard.path
    name = NAIVE if alone else bench.case.variant.name
    bench.progress("for the NPU: what there was before", 0.0)
    try:
        path = _fixed_dimensions(bench, folder / "before.onnx")
        if alone:
            quantize_by_default(path, folder / "naive.onnx", calibration_of(bench.workload))
            path = folder / "naive.onnx"
        compiled = compile_model(bench, Variant(DEFAULT_RUNTIME, str(path), dict(options)), folder / "before")
    except UnlagError as error:
        return OnNpu(model=name, failed=error.message)
    made = _on_npu(name, compiled)
    if not compiled.context:
        return made
    context, what = Variant(DEFAULT_RUNTIME, compiled.context, dict(options)), "what there was before"
    try:
        scored = judge.by_codes(f"{what}, on the CPU", path)
        simulated = judge.simulate(f"{what}, simulated", context, BEFORE_S, FEWEST_BEFORE)
        cosine = judge.cosine(f"{what}, simulated", context)
    except UnlagError as error:
        return msgspec.structs.replace(
            made, failed=f"it is compiled, but can't be run in the simulator: {error.message}"
        )
    return msgspec.structs.replace(made, simulated=simulated, by_codes=scored, cosine=cosine)


def _fixed_dimensions(bench: Bench, path: Path) -> Path:
    """The variant's model with its dimensions fixed and nothing else changed."""
    model = read_model(Path(bench.case.variant.path))
    fix_dimensions(model, {name: array.shape for name, array in bench.workload.feed.items()})
    save_model(model, path)
    return path


def _prepare(bench: Bench, judge: Judge, path: Path) -> tuple[Kept, ...]:
    """Write the float graph that is quantized; without rewrites, should they change what it computes.

    Raises:
        UsageError: it can't be read, or not even folding its constants leaves it what it is.
    """
    bench.progress("for the NPU: preparing the graph", 0.0)
    why = ""
    for rewrites in (True, False):
        try:
            changed = prepare(bench, path, rewrites=rewrites)
            cosine = judge.cosine("the prepared graph", Variant(DEFAULT_RUNTIME, str(path)))
        except UnlagError as error:
            why = error.message
            continue
        if cosine >= SAME_GRAPH:
            return tuple(Kept(name, f"{count} changed; cosine {cosine:.6f}") for name, count in changed.items())
        why = f"its outputs change (cosine {cosine:.4f})"
    raise UsageError(f"the standard can't be prepared for the NPU: {why}")


def _on_npu(name: str, compiled: Compilation) -> OnNpu:
    return OnNpu(
        model=name,
        partitions=compiled.partitions,
        npu_nodes=compiled.npu_nodes,
        fallback_nodes=compiled.fallback_nodes,
        fallback=tuple(Fallback(one.operator, one.reason, one.nodes) for one in compiled.fallback),
        context_bytes=compiled.context_bytes,
        operators=compiled.operators,
    )


def _npu(search: Search, chosen: Candidate, before: OnNpu, changed: tuple[Kept, ...]) -> Npu:
    made = _on_npu(chosen.scheme.name, chosen.compiled)
    parts = {name: getattr(made, name) for name in made.__struct_fields__} | {
        "simulated": chosen.simulated,
        "by_codes": chosen.by_codes,
        "cosine": chosen.cosine,
    }
    return Npu(
        **parts,
        before=before,
        compiler=runtime_version(),
        chip=search.options[SOC],
        kept=(*changed, *search.kept),
        rejected=tuple(search.rejected),
        simulated_run_s=search.judge.run_s,
        not_measured=NOT_MEASURED,
    )


def _record(compared: Compared, npu: Npu, notes: Sequence[str], output: Path) -> Fix:
    standard = compared.comparison.standard
    latency = standard.latency_ms
    return Fix(
        explanation=nothing_to_explain(compared.comparison),
        stages=(),
        npu=npu,
        output=str(output),
        result=None,
        standard_latency_ms=Interval(latency.median, latency.low, latency.high),
        standard_accuracy=standard.accuracy,
        standard_size_bytes=standard.size_bytes,
        notes=tuple(notes),
    )


def _compiled_files(chosen: Candidate) -> tuple[Path, ...]:
    """The compiled model and its context binary, which go out beside the model."""
    folder = Path(chosen.compiled.context).parent
    return tuple(sorted(path for path in folder.iterdir() if path.name != TRACE))
