"""Activations that have too few codes for what they hold.

What it is: an activation is quantized with one scale for all of it, and though its range fits, few large values take
most of the codes. The others are rounded to a handful.

Why it costs: the scale follows the largest value. In transformers some channels are ten to a hundred times as large as
the rest; what the rest carries is then lost in rounding, at every layer. It costs accuracy, not time.

How it is seen: the variant is run tensor by tensor. Rounding to steps of the scale s has an error of s/√12; where the
tensor's root mean square is less than ten times that (20 dB), the activation is one of these. Those whose scale
doesn't fit are another cause; attention weights, small numbers below one by nature, are left alone.

Remedy: leave these activations in floats. Weights keep their codes, and the other activations theirs.

Safety: close. Values that were rounded to codes are not rounded any more; their products run in floats.

Source: onnxruntime#12854, onnxruntime#9599, pytorch#45185, ao#4292.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.observe.judged import faulty_activations
from unlag.rewrites.activation_codes import quantized_activations
from unlag.rewrites.activation_fit import LOWEST_SQNR_DB
from unlag.rewrites.float_activations import float_activations


def _detect(evidence: Evidence) -> Finding:
    total = len(quantized_activations(file_graphs(evidence)[1]))
    if not total:
        return Finding("ruled_out", "0 activations are quantized with a stored scale")
    values = evidence.variant.values
    if isinstance(values, Missing):
        return Finding(
            "not_checked", f"{total} activations have a stored scale; what they hold is not known: {values.reason}"
        )
    theirs, ours = (faulty_activations(evidence, side, "rounded") for side in ("standard", "variant"))
    count = f"{len(ours)} of {total} quantized activations have a signal-to-noise ratio below {LOWEST_SQNR_DB:.0f} dB"
    if not ours:
        return Finding("ruled_out", count)
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    worst = min(judgement.amount for judgement in ours)
    reason = f"{count}, the worst {worst:.0f} dB (standard: {len(theirs)})"
    return Finding("found", reason, tuple(judgement.activation.tensor for judgement in ours))


CAUSE = Cause(
    id="rounded_activations",
    title="activations with too few codes",
    dimension="quantization",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="float_activations",
            title="leave the activations in floats that 8 bits are too coarse for",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=lambda draft: float_activations(draft.model, draft.observed),
        ),
    ),
    knots={"poor_calibration": "both are errors of the same codes"},
)
