"""Matrix products in float32 on tensor cores.

What it is: on a CUDA device with tensor cores, matrix products of the variant are computed in float32, where the
standard's are in half precision.

Why it costs: tensor cores multiply float16 and bfloat16 at 8 to 16 times the rate of float32 arithmetic, and at twice
that of TF32; weights and activations take half the bytes. A variant that was exported, dequantized or widened in
float32 leaves all of that unused.

How it is seen: in the profile, matrix products and attention on the CUDA or TensorRT provider in float32, more of them
than in the standard, with a noticeable share of the time, on a device of compute capability 7.0 or above where that
is known.

Remedy: compute in float16, inputs and outputs staying what they are; with normalizations and Softmax in float32, or in
bfloat16, where float16 loses too much.

Safety: close. Numbers are rounded to 11 bits, or to 8 in bfloat16.

Source: onnxruntime#15534, opencv!16171 (ResNet-50 on tensor cores: 2.36 ms in float16, 2.74 in float32); the rates are
those of NVIDIA's data sheets of V100 and A100.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.measure.host_gpu import TENSOR_CORES, capability_of
from unlag.model.draft import OnnxDraft
from unlag.observe.evidence import Evidence, Side
from unlag.rewrites.narrow_floats import DELICATE, Half, narrow_floats
from unlag.runtimes.contract import Operator

DEVICES = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider"})
BIG = frozenset({"gemm", "attention"})
TIME_SHARE = 0.05


def _detect(evidence: Evidence) -> Finding:
    profile = evidence.variant.profile
    if isinstance(profile, Missing):
        return Finding("not_checked", profile.reason)
    products = _products(evidence.variant)
    if not products:
        return Finding("not_checked", "no CUDA device: 0 matrix products of the profile ran on one")
    capability = capability_of(evidence.host.gpus)
    ours = [operator for operator in products if operator.precision == "float32"]
    theirs = sum(operator.precision == "float32" for operator in _products(evidence.standard))
    share = sum(o.time_ms for o in ours) / max(sum(o.time_ms for o in profile.operators), 1e-9)
    count = f"{len(ours)} of {len(products)} products are in float32 (standard: {theirs}), {share:.0%} of the time"
    if not isinstance(capability, Missing) and capability < TENSOR_CORES:
        version = ".".join(map(str, capability))
        return Finding("ruled_out", f"{count}; a device of compute capability {version} has no tensor cores")
    if len(ours) <= theirs or share < TIME_SHARE:
        return Finding("ruled_out", count)
    return Finding("found", count, tuple(operator.name for operator in ours))


def _products(side: Side) -> list[Operator]:
    """Matrix products and attention that ran on a device."""
    if isinstance(side.profile, Missing):
        return []
    return [o for o in side.profile.operators if o.kind in BIG and o.kernel in DEVICES]


def _narrow(draft: OnnxDraft, to: Half, kept: frozenset[str]) -> int:
    draft.model, changed = narrow_floats(draft.model, to, kept)
    return changed


CAUSE = Cause(
    id="single_precision_products",
    title="float32 products where tensor cores are",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="compute_in_float16",
            title="compute in float16",
            safety="CLOSE",
            step=Step.SESSION,
            apply=lambda draft: _narrow(draft, "float16", frozenset()),
        ),
        Remedy(
            id="compute_in_float16_but_sums",
            title="compute in float16, normalizations and Softmax in float32",
            safety="CLOSE",
            step=Step.SESSION,
            apply=lambda draft: _narrow(draft, "float16", DELICATE),
        ),
        Remedy(
            id="compute_in_bfloat16",
            title="compute in bfloat16",
            safety="CLOSE",
            step=Step.SESSION,
            apply=lambda draft: _narrow(draft, "bfloat16", frozenset()),
        ),
    ),
)
