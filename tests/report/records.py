"""Hand-made records with the numbers of the design's example, for the tests of all report forms."""

from __future__ import annotations

from typing import Any

import msgspec

from unlag.errors import Missing
from unlag.measure.comparison import Accuracy, Comparison, Latency, Measured, Verdict
from unlag.measure.contest import Launch, Sample, Turn
from unlag.measure.host import Allowance, Cpu, Frequency, Heat, Host, Load, System
from unlag.measure.statistics import Interval
from unlag.model.workload import Agreement
from unlag.observe.evidence import AttentionFacts
from unlag.proof.explanation import (
    AccuracyReconciliation,
    Block,
    CauseReport,
    Explanation,
    KindTime,
    Knot,
    PrecisionTime,
    Reconciliation,
    RemedyNote,
)
from unlag.runtimes.contract import Placement
from unlag.stages.fixed import Fix, Kept, Rejected, StageResult

_UNREAD = Missing("a machine made up for tests")
_PLACEMENT = Placement(nodes={"CPUExecutionProvider": 210}, requested="CPUExecutionProvider")

HOST = Host(
    cpu=Cpu("Example CPU 3000", "Example", "x86_64", ("avx2", "fma"), 2, 2, False, _UNREAD, 1),  # noqa: FBT003
    allowance=Allowance((0, 1), 2, "unlimited", 0, 0, "unlimited"),
    frequency=Frequency(_UNREAD, _UNREAD, _UNREAD, _UNREAD, _UNREAD, _UNREAD),
    load=Load(0.1, 0.0, 8 << 30, 6 << 30, 0, 0),
    heat=Heat(_UNREAD, _UNREAD),
    energy=_UNREAD,
    gpus=(),
    system=System("Linux", "6.1", "3.11.7", True, "kvm", "docker"),  # noqa: FBT003
)


def pm(estimate: float, half: float) -> Interval:
    return Interval(estimate, estimate - half, estimate + half)


def _sample(median_ms: float) -> Sample:
    turns = tuple(
        Turn(
            round=number,
            launch=number // 3,
            times_ns=tuple(int(1e6 * (median_ms + 0.02 * number + 0.01 * k)) for k in (-1, 0, 1)),
            disturbed="the hypervisor took 30 ms of a turn of 200 ms" if number == 3 else None,
        )
        for number in range(6)
    )
    return Sample((Launch(40.0, 31.0, 12, steady=True, pinned=True),) * 2, turns, 310_000_000)


def measured(spec: str, median_ms: float, accuracy: float | None, size_bytes: int) -> Measured:
    return Measured(
        spec=spec,
        runtime="onnxruntime",
        latency_ms=Latency(median_ms, median_ms - 0.2, median_ms + 0.2),
        accuracy=None if accuracy is None else Accuracy("STS-B Spearman", accuracy),
        size_bytes=size_bytes,
        peak_memory_bytes=310_000_000,
        load_ms=182.0,
        first_run_ms=31.5,
        warmup_runs=12,
        steady=True,
        placement=_PLACEMENT,
    )


STANDARD, FLASH = "models/standard.onnx", "models/flash.onnx,optimization=off"


def comparison(standard: str = STANDARD, variant: str = FLASH) -> Comparison:
    return Comparison(
        host=HOST,
        workload="stsb",
        shape="1x128",
        standard=measured(standard, 23.4, 82.03, 90_400_000),
        variant=measured(variant, 75.4, 77.45, 22_900_000),
        slowdown=Interval(3.23, 3.19, 3.28),
        noise=Interval(1.001, 0.994, 1.008),
        accuracy_change=Interval(-4.6, -5.9, -3.3),
        agreement=Agreement(cosine=0.98, max_error=0.31, relative_error=0.12, top1=None),
        verdict=Verdict("slower", "worse"),
        rounds=5,
        disturbed_rounds=1,
        monitor=Missing("not watched in this test"),
        samples={"standard": _sample(23.4), "variant": _sample(75.4), "control": _sample(23.4)},
        warnings=("the variant's session takes 12 runs to become steady",),
    )


def inconclusive() -> Comparison:
    return msgspec.structs.replace(
        comparison(),
        workload="random",
        slowdown=Interval(1.02, 0.97, 1.07),
        noise=Interval(1.0, 0.96, 1.04),
        accuracy_change=None,
        verdict=Verdict("inconclusive", "not_measured"),
        warnings=(),
    )


def by_shape() -> Comparison:
    other = msgspec.structs.replace(
        comparison(), shape="1x32", slowdown=Interval(0.8, 0.79, 0.81), verdict=Verdict("faster", "same")
    )
    return msgspec.structs.replace(comparison(), other_shapes=(other,))


def _causes() -> tuple[CauseReport, ...]:
    return (
        CauseReport(
            id="weight_dequantized_every_run", title="weights dequantized at every run", dimension="quantization",
            status="proven", reason="36 of 36 MatMuls", where=("layer.0/q", "layer.0/k"),
            remedy=RemedyNote("fold_dequantize", "store the weights as float32", "EXACT"),
            cost_ms=pm(25.7, 0.7), first_in_ms=pm(44.8, 0.9), last_out_ms=pm(6.5, 0.3), share_of_gap=0.49,
        ),
        CauseReport(
            id="float16_on_cpu", title="float16 emulated on this CPU", dimension="hardware", status="proven",
            reason="72 casts, no FP16 unit", remedy=RemedyNote("widen_float16", "compute in float32", "CLOSE"),
            cost_ms=pm(21.6, 0.6), first_in_ms=pm(43.0, 0.8), last_out_ms=pm(0.1, 0.2), share_of_gap=0.41,
        ),
        CauseReport(
            id="passes_off", title="graph optimizations switched off", dimension="graph", status="proven",
            reason="optimization=off in the spec", remedy=RemedyNote("optimize", "switch them on", "EXACT"),
            cost_ms=pm(0.8, 0.4), first_in_ms=pm(0.2, 0.4), last_out_ms=pm(1.3, 0.3), share_of_gap=0.01,
        ),
        CauseReport(
            id="attention_scale_missing", title="attention scale missing", dimension="graph", status="proven",
            reason="6 of 6 attention blocks", remedy=RemedyNote("restore_scale", "multiply by 1/√d", "CLOSE"),
            accuracy_cost=pm(4.5, 0.3), share_of_loss=0.98,
        ),
        CauseReport(
            id="gpu_fallback", title="nodes that fall back to the CPU", dimension="hardware", status="not_checked",
            reason="no CUDA device",
        ),
        CauseReport(
            id="broken", title="a detector with a fault", dimension="graph", status="failed",
            reason="the detector raised KeyError: 'x'",
        ),
        CauseReport(
            id="redundant_copies", title="copies that change nothing", dimension="graph", status="ruled_out",
            reason="36 inverse transpose pairs, below the noise",
            first_in_ms=pm(0.1, 0.4), last_out_ms=pm(0.1, 0.3),
        ),
        CauseReport(
            id="thread_oversubscription", title="more threads than cores", dimension="hardware", status="ruled_out",
            reason="2 threads on 2 cores",
        ),
    )  # fmt: skip


def explanation() -> Explanation:
    return Explanation(
        comparison=comparison(),
        causes=_causes(),
        reconciliation=Reconciliation(
            gap_ms=pm(52.0, 0.9), explained_ms=pm(48.3, 1.0), interaction_ms=pm(3.4, 0.9), unexplained_ms=pm(0.3, 0.5)
        ),
        accuracy_reconciliation=AccuracyReconciliation(
            loss=pm(4.6, 1.3), explained=pm(4.5, 0.3), interaction=pm(0.0, 0.2), unexplained=pm(0.1, 0.3)
        ),
        knots=(
            Knot(
                ("weight_dequantized_every_run", "float16_on_cpu"),
                "FP16 weights are made, then converted, at every run; either remedy alone wins most of it",
            ),
        ),
        blocks=(
            Block("embedding", 0.4, 0.9, 0.045),
            Block("layer 1 attention", 11.2, 36.0, 0.37, pm(24.1, 0.4), pm(2.1, 0.5)),
            Block("layer 1 feed-forward", 11.4, 37.1, 0.004, graft_reason="another number of dimensions"),
        ),
        kinds=(
            KindTime("gemm", 17.1, 31.0, 0.81, 0.45),
            KindTime("cast", 0.0, 24.2, None, 0.3),
            KindTime("dequantize", 0.0, 12.9, None, 0.002),
        ),
        precisions=(
            PrecisionTime("float32", 90_400_000, 1_200_000, 23.0, 31.0),
            PrecisionTime("int8", 0, 21_300_000, 0.0, 44.0),
        ),
        attention=(AttentionFacts("a", "b", 2.6, 0.3, 0.9), AttentionFacts("c", "d", 1.4, 0.1, 1.1)),
    )


def _stages() -> tuple[StageResult, ...]:
    rows: tuple[tuple[Any, ...], ...] = (
        ("baseline", 75.4, 1.0, 3.23, 77.45, 22_900_000, (), ()),
        (
            "quantization", 24.1, 3.13, 1.03, 77.5, 22_700_000,
            (Kept("dynamic_int8", "wins 51.3 ± 0.8 ms, −0.0 points"),),
            (Rejected("static_int8", "2.1 points below the budget"),),
        ),
        ("graph", 14.6, 5.16, 0.62, 82.06, 22_700_000, (Kept("fuse_attention", "wins 9.5 ± 0.4 ms"),), ()),
        (
            "hardware", 14.3, 5.27, 0.61, 82.06, 22_700_000, (),
            (Rejected("spinning_off", "no faster: 0.1 ± 0.4 ms"),),
        ),
    )  # fmt: skip
    return tuple(
        StageResult(
            name=name,
            latency_ms=pm(ms, 0.2),
            speedup_over_baseline=pm(speedup, 0.05),
            slowdown_to_standard=pm(slow, 0.02),
            accuracy=Accuracy("STS-B Spearman", points),
            accuracy_change=pm(points - 82.03, 0.3),
            size_bytes=size,
            kept=kept,
            rejected=rejected,
        )
        for name, ms, speedup, slow, points, size, kept, rejected in rows
    )


def quick(comparison: Comparison) -> Explanation:
    """A diagnosis: two causes suspected, one of time and one of accuracy, and nothing measured."""
    reasons = {"weight_dequantized_every_run": ("speed",), "attention_scale_missing": ("accuracy",)}
    bare = tuple(
        CauseReport(
            id=cause.id, title=cause.title, dimension=cause.dimension, reason=cause.reason, where=cause.where,
            status="suspected" if cause.id in reasons else "ruled_out" if cause.status == "proven" else cause.status,
            affects=reasons.get(cause.id, ()),
        )
        for cause in _causes()
    )  # fmt: skip
    base, gap, nothing = explanation(), comparison.gap_ms, pm(0.0, 0.0)
    return msgspec.structs.replace(
        base,
        comparison=comparison,
        causes=tuple(sorted(bare, key=lambda cause: cause.status != "suspected")),
        reconciliation=Reconciliation(gap_ms=gap, explained_ms=nothing, interaction_ms=nothing, unexplained_ms=gap),
        accuracy_reconciliation=None,
        knots=(),
        blocks=tuple(Block(block.name, block.standard_ms, block.variant_ms, block.error) for block in base.blocks),
        quick=True,
    )


def nothing_found(diagnosis: Explanation) -> Explanation:
    """The same with everything suspected ruled out."""
    causes = tuple(
        msgspec.structs.replace(cause, status="ruled_out") if cause.status == "suspected" else cause
        for cause in diagnosis.causes
    )
    return msgspec.structs.replace(diagnosis, causes=causes)


def against_itself() -> Explanation:
    """A model against itself: nothing differs, nothing is found."""
    base = inconclusive()
    same = msgspec.structs.replace(
        base,
        variant=base.standard,
        slowdown=Interval(1.0, 0.998, 1.002),
        agreement=Agreement(cosine=1.0, max_error=0.0, relative_error=0.0, top1=None),
        noise=Interval(1.0, 0.995, 1.005),
        verdict=Verdict("same", "not_measured"),
    )
    return msgspec.structs.replace(nothing_found(quick(same)), quick=False)


def fix() -> Fix:
    result = msgspec.structs.replace(
        comparison(variant="fixed/model.onnx"),
        variant=measured("fixed/model.onnx", 14.3, 82.06, 22_700_000),
        slowdown=Interval(0.61, 0.60, 0.62),
        accuracy_change=Interval(0.03, -0.2, 0.3),
        verdict=Verdict("faster", "same"),
        warnings=(),
    )
    return Fix(
        explanation=explanation(),
        stages=_stages(),
        output="fixed",
        result=result,
        standard_latency_ms=pm(23.4, 0.2),
        standard_accuracy=Accuracy("STS-B Spearman", 82.03),
        standard_size_bytes=90_400_000,
        notes=("the standard's own weights were quantized anew",),
    )
