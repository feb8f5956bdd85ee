"""Operators that fall back to the CPU.

What it is: the session was asked to run on a device, and operators of the variant run on the CPU, with copies between
the two memories around them.

Why it costs: an operator without a kernel for the device, or for the type it is given (int8, most of all), is run
by the CPU. The device waits for it, its inputs are copied over the bus and its outputs back, and each copy waits
for all that was queued before.

How it is seen: in the profile, operators on the CPU's provider and Memcpy operators take a noticeable share of the
time, more than in the standard. Arithmetic on shapes is put on the CPU on purpose and takes next to nothing.

Remedy: compute integer operators in float32, for which the device has kernels; other operators have to be exported in
types that it has kernels for. Where every matrix product fell back, the session is opened on the CPU, which saves the
copies.

Safety: close; advice where it takes another export.

Source: optimum#1163, optimum#1885, onnxruntime#12880, onnxruntime#5958, onnxruntime#14550, onnxruntime#10303.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.observe.evidence import Evidence, Side
from unlag.observe.session_options import PROVIDER
from unlag.rewrites.float_operators import float_operators
from unlag.rewrites.float_products import float_products, float_recurrences
from unlag.rewrites.fold_dequantize import fold_dequantize
from unlag.runtimes.contract import Operator

CPU, CPU_KERNEL = "cpu", "CPUExecutionProvider"
COPIES = frozenset({"MemcpyFromHost", "MemcpyToHost"})
BIG = frozenset({"gemm", "attention"})
TIME_SHARE = 0.02


def _detect(evidence: Evidence) -> Finding:
    asked, profile = _asked(evidence.variant), evidence.variant.profile
    if asked == CPU:
        return Finding("ruled_out", "only the CPU was asked for: 0 operators can fall back")
    if isinstance(profile, Missing):
        device = "no CUDA device, and " if not evidence.host.gpus or isinstance(evidence.host.gpus, Missing) else ""
        return Finding("not_checked", f"{asked} was asked for; {device}{profile.reason}")
    fallen = _fallen(profile.operators)
    share, theirs = _share(evidence.variant), _share(evidence.standard)
    copies = sum(operator.op_type in COPIES for operator in fallen)
    count = (
        f"{len(fallen) - copies} of {len(profile.operators)} operators run on the CPU with {copies} copies,"
        f" though {asked} was asked for: {share:.0%} of the time (standard: {theirs:.0%})"
    )
    if share < TIME_SHARE or share <= theirs:
        return Finding("ruled_out", count)
    big = [operator for operator in profile.operators if operator.kind in BIG]
    stranded = bool(big) and all(operator.kernel == CPU_KERNEL for operator in big)
    where = tuple(dict.fromkeys(operator.name for operator in fallen))
    if stranded:
        return Finding("found", count, where, "run_on_cpu")
    integers = any(operator.precision == "int8" for operator in fallen)
    return Finding("found", count, where, "float_on_device" if integers else "keep_on_device")


def _asked(side: Side) -> str:
    return side.variant.options.get(PROVIDER, CPU).lower().removesuffix("executionprovider")


def _fallen(operators: tuple[Operator, ...]) -> list[Operator]:
    return [o for o in operators if o.kernel == CPU_KERNEL or o.op_type in COPIES]


def _share(side: Side) -> float:
    """Share of the profiled time that fell back; 0 where the CPU was asked for or there is no profile."""
    if isinstance(side.profile, Missing) or _asked(side) == CPU:
        return 0.0
    total = sum(operator.time_ms for operator in side.profile.operators)
    return sum(operator.time_ms for operator in _fallen(side.profile.operators)) / total if total else 0.0


def _float_on_device(draft: OnnxDraft) -> int:
    model = draft.model
    products = float_products(model) + float_recurrences(model)
    return products + float_operators(model, lambda _node: True) + fold_dequantize(model)


def _run_on_cpu(draft: OnnxDraft) -> int:
    return int(draft.options.pop(PROVIDER, CPU) != CPU)


CAUSE = Cause(
    id="provider_fallback",
    title="operators that fall back to the CPU",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="keep_on_device",
            title="use types and operators that the device has, and bind inputs and outputs to it",
            safety="ADVICE",
            step=Step.SESSION,
            apply=lambda _draft: 0,
        ),
        Remedy(
            id="float_on_device",
            title="compute in float32 what the device has no integer kernels for",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=_float_on_device,
        ),
        Remedy(
            id="run_on_cpu",
            title="open the session on the CPU, where the matrix products run anyway",
            safety="CLOSE",
            step=Step.SESSION,
            apply=_run_on_cpu,
        ),
    ),
)
