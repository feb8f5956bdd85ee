"""Activations quantized and dequantized around operators that compute in floats.

What it is: an activation goes through QuantizeLinear and straight back through DequantizeLinear, because the
operator behind it, or the form it is in, has no integer kernel.

Why it costs: the pair computes nothing. It reads the tensor, writes codes, reads the codes and writes the tensor again,
and it stands where the runtime would have fused the float operators on its two sides.

How it is seen: in the graph that the runtime executes, the codes of a QuantizeLinear reach DequantizeLinear with
nothing in between but nodes that move elements. Pairs that an integer kernel takes in are gone from that graph.

Remedy: take away exactly these pairs. Pairs that integer kernels use, and the weights, stay.

Safety: close. Values that were rounded to codes are not rounded any more.

Source: onnxruntime#20052, onnxruntime#26143, onnxruntime#12487, onnxruntime#21496, onnxruntime#17278, onnxruntime#8988.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.observe.passes import has_fewer_passes
from unlag.rewrites.activation_codes import undone_quantizations
from unlag.rewrites.remove_quantize_pairs import remove_quantize_pairs

FEWEST_SHARE = 0.1
"""Of the quantized activations: a model that is quantized well has a pair or two left over."""


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = undone_quantizations(variant), len(undone_quantizations(standard))
    quantized = _quantized(variant)
    count = f"{len(ours)} of {quantized} quantized activations are dequantized with no integer kernel between"
    if not ours:
        return Finding("ruled_out", count)
    if len(ours) < FEWEST_SHARE * quantized:
        return Finding("ruled_out", f"{count}: less than {FEWEST_SHARE:.0%}, such as a pair in front of an output")
    if len(ours) <= theirs:
        return Finding("ruled_out", f"{count}, in the standard {theirs}")
    if has_fewer_passes(evidence):
        return Finding("ruled_out", f"{count}, but the passes that make integer kernels of them are off here")
    return Finding("found", f"{count} (standard: {theirs})", ours)


def _quantized(index: GraphIndex) -> int:
    quantizers = {"QuantizeLinear", "DynamicQuantizeLinear"}
    return sum(n.op_type in quantizers and index.constant(n.inputs[0]) is None for n in index.facts.nodes)


CAUSE = Cause(
    id="unfused_quantization",
    title="activations quantized and dequantized for nothing",
    dimension="quantization",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="remove_quantize_pairs",
            title="take away the quantize-dequantize pairs that no integer kernel uses",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=lambda draft: remove_quantize_pairs(draft.model, draft.observed.undone),
        ),
    ),
    knots={"signed_activations": "pairs of signed codes next to unsigned ones are left over as well"},
)
