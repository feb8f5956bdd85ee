"""Integer operators without an optimized kernel.

What it is: an operator that the quantizer made an integer one runs in a kernel that nobody has optimized.

Why it costs: integer matrix products and dense convolutions have fast kernels; others fall to plain loops, one element
after the other. In ONNX Runtime these are convolutions in groups that are not plain depthwise, Softmax, and poolings
in the usual layout: 7 to 80 times the time of the float operator on one machine. One such operator can cost
more than all integer products save.

How it is seen: in the profile, an integer Softmax, pooling or convolution in groups (not depthwise) takes more than
twice the mean time of the standard's float ones with results and weights of the same size, and together they lose more
than a fiftieth of the run.

Remedy: these operators in floats, with their weights dequantized once; operators around them stay integer ones.

Safety: close. Their inputs are not rounded any more, or are rounded as before.

Source: onnxruntime#8988, tflite-support#214, tensorflow-model-optimization#599, tensorflow#21698, tensorflow#40183.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.observe.kernels import Kernel, integer_kernels
from unlag.observe.products import profile_of
from unlag.rewrites.float_operators import float_operators
from unlag.rewrites.packed_weights import given
from unlag.rewrites.stored_weights import weight_array

SLOWER = 2.0
SHARE = 0.02
_PLAIN = frozenset({"Softmax", "AveragePool", "MaxPool"})


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    run_ms = profile_of(evidence.variant).run_ms
    kernels = integer_kernels(evidence, standard, variant)
    slow = [kernel for kernel in kernels if kernel.ratio > SLOWER and _has_remedy(kernel)]
    count = f"{len(slow)} of {len(kernels)} integer convolutions, poolings and Softmax take over twice the float time"
    if not kernels and isinstance(evidence.standard.profile, Missing):
        return Finding("not_checked", f"{count}: the standard has no profile: {evidence.standard.profile.reason}")
    if not slow:
        return Finding("ruled_out", count)
    ours_ms, standard_ms = sum(k.ours_ms for k in slow), sum(k.standard_ms for k in slow)
    times = f"{ours_ms:.3g} ms a run, the standard's float ones {standard_ms:.3g} ms"
    if ours_ms - standard_ms <= SHARE * run_ms:
        return Finding("ruled_out", f"{count}, but little of the {run_ms:.3g} ms: {times}")
    kinds = ", ".join(f"{number} {family}" for family, number in Counter(k.family for k in slow).most_common())
    return Finding("found", f"{count} ({kinds}): {times}", tuple(k.name for k in slow))


def _has_remedy(kernel: Kernel) -> bool:
    """The kinds that lose by their kernel. Dense and depthwise convolutions have good ones, and are left alone."""
    return kernel.family in _PLAIN or (kernel.group > 1 and not kernel.depthwise)


def _is_slow_kind(node: ir.Node) -> bool:
    """Softmax, poolings, and convolutions in groups of more than one channel each."""
    if node.op_type in _PLAIN:
        return True
    group = node.attributes.get_int("group", 1)
    if node.op_type not in {"Conv", "QLinearConv"} or group == 1:
        return False
    value = given(node, 3 if node.op_type == "QLinearConv" else 1)
    weight = None if value is None else weight_array(value)
    return weight is not None and weight.shape[:2] != (group, 1)


CAUSE = Cause(
    id="unoptimized_integer_kernel",
    title="integer operators without an optimized kernel",
    dimension="quantization",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed", "profile"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="float_slow_kernels",
            title="take grouped convolutions, poolings and Softmax back to float",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=lambda draft: float_operators(draft.model, _is_slow_kind),
        ),
    ),
)
