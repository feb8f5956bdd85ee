"""Activation scales that don't fit what the tensors hold.

What it is: the scale and zero point of a quantized activation were set from inputs unlike the ones that are run:
its codes end far below the values that occur, or reach far beyond them.

Why it costs: values outside of the range are clipped to its ends, and the large values of an activation carry most of
its signal. A range eight times too wide leaves 32 of 256 codes, so that rounding errors are eight times as large.
It costs accuracy, not time.

How it is seen: the variant is run tensor by tensor. A tensor is clipped where it reaches beyond its codes and comes
back with at least 10 % less root mean square (after a Relu that the codes took over: where most of what is left lies at
their end); its range is too wide where what occurred takes less than 32 codes and
its signal-to-noise ratio is below 30 dB. Masks clipped in front of a Softmax, and the fixed range of Softmax or Sigmoid
are as they should be.

Remedy: set scale and zero point of these tensors to the range that was observed, or that of the standard's tensor with
the same values.

Safety: close. Codes come nearer to the values; inputs unlike the observed ones may be clipped.

Source: onnxruntime#12854, onnxruntime#9599, tensorflow#40183, pytorch#45185, edgecortix!5.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.observe.judged import faulty_activations
from unlag.rewrites.activation_codes import quantized_activations
from unlag.rewrites.activation_fit import FEWEST_CODES
from unlag.rewrites.recalibrate_activations import recalibrate_activations


def _detect(evidence: Evidence) -> Finding:
    total = len(quantized_activations(file_graphs(evidence)[1]))
    if not total:
        return Finding("ruled_out", "0 activations are quantized with a stored scale")
    values = evidence.variant.values
    if isinstance(values, Missing):
        return Finding(
            "not_checked", f"{total} activations have a stored scale; what they hold is not known: {values.reason}"
        )
    theirs, ours = (faulty_activations(evidence, side, "clipped", "wide") for side in ("standard", "variant"))
    if not ours:
        return Finding("ruled_out", f"0 of {total} quantized activations have a scale that does not fit their values")
    clipped = [judgement for judgement in ours if judgement.fault == "clipped"]
    count = f"of {total} quantized activations {len(clipped)} are clipped"
    if clipped:
        count += f" (one loses {max(judgement.amount for judgement in clipped):.0%} of its root mean square)"
    count += f", {len(ours) - len(clipped)} use less than {FEWEST_CODES} codes"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    return Finding("found", f"{count} (standard: {len(theirs)})", tuple(j.activation.tensor for j in ours))


CAUSE = Cause(
    id="poor_calibration",
    title="activation scales that do not fit the values",
    dimension="quantization",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="recalibrate_activations",
            title="set the scales of activations to the values observed",
            safety="CLOSE",
            step=Step.REQUANTIZE,
            apply=lambda draft: recalibrate_activations(draft.model, draft.observed),
        ),
    ),
    knots={"rounded_activations": "both are errors of the same codes"},
)
