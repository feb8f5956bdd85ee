"""Matrix products that tensor cores can't take.

What it is: on a CUDA device, half-precision matrix products have dimensions that are no multiples of 8.

Why it costs: tensor cores multiply blocks of 8 numbers or more. Rows that do not start at a multiple of 16 bytes are
loaded piece by piece, or the library takes a kernel without tensor cores: several times slower, up to no faster than
float32. Typical is a vocabulary of 50257, or heads and layers that were pruned one column at a time.

How it is seen: in the profile, MatMul, Gemm and Conv on the CUDA provider in float16 or bfloat16 whose inner or
output dimension is no multiple of 8, more than in the standard, with a noticeable share of the time.

Remedy: fill the weights up with zeros to the next multiple of 8. Channels between two products are added to both; a
last product's result is cut, which costs a copy.

Safety: exact. Zeros add nothing to a sum; only the order in which it is taken may change.

Source: pytorch#195716, apex#153, fairseq#1047.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.observe.evidence import Evidence, Side
from unlag.rewrites.pad_dimensions import pad_dimensions
from unlag.runtimes.contract import Operator

DEVICES = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider"})
HALF = frozenset({"float16", "bfloat16"})
MULTIPLE = 8
TIME_SHARE = 0.05


def _detect(evidence: Evidence) -> Finding:
    profile = evidence.variant.profile
    if isinstance(profile, Missing):
        return Finding("not_checked", profile.reason)
    products = _products(evidence.variant)
    if not products:
        return Finding("not_checked", "no CUDA device: 0 matrix products of the profile ran on one")
    half = [operator for operator in products if operator.precision in HALF]
    ours = [operator for operator in half if is_unaligned(operator)]
    theirs = sum(is_unaligned(operator) for operator in _products(evidence.standard) if operator.precision in HALF)
    share = sum(o.time_ms for o in ours) / max(sum(o.time_ms for o in profile.operators), 1e-9)
    count = (
        f"{len(ours)} of {len(half)} half-precision matrix products have dimensions that are no multiples of"
        f" {MULTIPLE} (standard: {theirs}), {share:.0%} of the time"
    )
    if len(ours) <= theirs or share < TIME_SHARE:
        return Finding("ruled_out", count)
    return Finding("found", count, tuple(operator.name for operator in ours))


def _products(side: Side) -> list[Operator]:
    """Matrix products that ran on a device."""
    if isinstance(side.profile, Missing):
        return []
    return [o for o in side.profile.operators if o.kind == "gemm" and o.kernel in DEVICES]


def is_unaligned(operator: Operator) -> bool:
    """Whether the inner or the output dimension of the second input, [.., K, N] or [M, C, ..], is none of 8."""
    if len(operator.input_shapes) < 2 or len(operator.input_shapes[1]) < 2:
        return False
    weight = operator.input_shapes[1]
    sizes = weight[:2] if operator.op_type.endswith("Conv") else weight[-2:]
    return any(size % MULTIPLE for size in sizes)


CAUSE = Cause(
    id="unaligned_dimensions",
    title="dimensions that tensor cores can't take",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="pad_dimensions",
            title="fill weights up with zeros to multiples of 8",
            safety="EXACT",
            step=Step.RESTORE,
            apply=lambda draft: pad_dimensions(draft.model, MULTIPLE),
        ),
    ),
)
