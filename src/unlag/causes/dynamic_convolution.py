"""Convolutions under dynamic quantization.

What it is: convolutions run as ConvInteger, with the activation's scale taken at every run.

Why it costs: ConvInteger copies each patch of the image into a matrix and multiplies it, without the blocked layouts
of float and of statically quantized convolutions. In front of it the whole activation is read twice, for its range and
for its codes; behind it Cast, Mul and Add each go over the result, and the Relu is not fused any more. Depthwise
convolutions, whose products are thin, lose most.

How it is seen: more ConvInteger in the graph that the runtime executes than in the standard's, and in the profile all
convolutions, with what quantizes their inputs and scales their results, are not clearly faster than the standard's.
(With an int8 dot product, dense convolutions of many channels may pay.)

Remedy: convolutions in floats again, with their weights dequantized once. Matrix products stay quantized. Static
quantization suits convolutions better.

Safety: close. Activations are not rounded any more.

Source: onnxruntime#6732, onnxruntime#12854, onnxruntime#16009, onnxruntime#5865, onnxruntime#12558, sherpa#575.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.observe.products import profile_of, scaling_behind
from unlag.rewrites.float_products import float_products

PAYS = 0.85
"""Below this share of the standard's time convolutions are clearly faster: two profiles of one model differ by up to a
tenth. Above it, what they do to the operators around them (a Relu that is not fused any more) decides, which only a
proof can tell."""
FLOAT_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcFusedConv"})


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = _integer(variant), len(_integer(standard))
    floats = sum(node.op_type in FLOAT_CONVOLUTIONS for node in variant.facts.nodes)
    count = f"{len(ours)} of {len(ours) + floats} convolutions quantize their input at every run"
    if not ours:
        return Finding("ruled_out", count)
    if len(ours) <= theirs:
        return Finding("ruled_out", f"{count}, in the standard {theirs}")
    if isinstance(evidence.standard.profile, Missing):
        return Finding("not_checked", f"{count}; the standard has no profile: {evidence.standard.profile.reason}")
    ours_ms, theirs_ms = _times_ms(evidence, variant)
    words = f"{count} (standard: {theirs}); convolutions take {ours_ms:.3g} ms a run, the standard's {theirs_ms:.3g} ms"
    if ours_ms < PAYS * theirs_ms:
        return Finding("ruled_out", words)
    return Finding("found", words, tuple(node.name or node.outputs[0] for node in ours))


def _integer(index: GraphIndex) -> list[Node]:
    return [node for node in index.facts.nodes if node.op_type == "ConvInteger"]


def _times_ms(evidence: Evidence, variant: GraphIndex) -> tuple[float, float]:
    """All convolutions of both sides, with what quantization adds."""
    ours, theirs = profile_of(evidence.variant), profile_of(evidence.standard)
    belonging = {node.name for node in _around(variant) if node.name}
    kinds = FLOAT_CONVOLUTIONS | {"ConvInteger"}
    ours_ms = sum(o.time_ms for o in ours.operators if o.op_type in kinds or o.name in belonging)
    return ours_ms, sum(o.time_ms for o in theirs.operators if o.op_type in kinds)


def _around(index: GraphIndex) -> list[Node]:
    """What quantizes the inputs of ConvInteger nodes, and what scales their results."""
    found = []
    for node in _integer(index):
        quantizer = index.producer(node.inputs[0])
        if quantizer is not None and quantizer.op_type == "DynamicQuantizeLinear":
            found.append(quantizer)
        found += scaling_behind(index, node)
    return found


CAUSE = Cause(
    id="dynamic_convolution",
    title="convolutions quantized at every run",
    dimension="quantization",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed", "profile"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="float_convolutions",
            title="take ConvInteger back to float convolutions",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=lambda draft: float_products(draft.model, lambda p: p.node.op_type == "ConvInteger"),
        ),
    ),
)
