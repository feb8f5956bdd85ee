"""Integer sums that are clipped at 16 bits.

What it is: integer kernels multiply unsigned activations by signed weights that use all of their range, on an
x86 CPU without VNNI.

Why it costs: there, the instruction that multiplies bytes adds two products in 16 bits and clips the sum at 32767.
255 · 127 twice is 64770. Large activations that meet large weights of one sign come out too small, which costs
accuracy and no time. With VNNI, and on ARM, the sums are taken in 32 bits.

How it is seen: MatMulInteger, DynamicQuantizeMatMul, QAttention or QLinear operators with int8 weights in the graph
that the runtime executes, whose median column reaches beyond code 64 (two products of 255 · 64 still fit), and a
CPU that lacks an int8 dot product.

Remedy: the session option that makes such kernels take the slower, exact way. (Weights of seven bits, as the
quantizer's reduce_range makes them, avoid it at full speed: ``unlag fix`` tries those.)

Safety: close. Sums are no longer clipped.

Source: onnxruntime#6004, onnxruntime#5849, onnxruntime#14642, onnxruntime#12072, onnxruntime#6545, onnxruntime#9599.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs

OPTION = "config.session.x64quantprecision"
X86 = frozenset({"x86_64", "amd64", "i686", "x86"})
SAFE_SHARE = 64 / 127
"""2 · 255 · 64 = 32640 still fits into 16 bits."""

_WEIGHT_INPUT = {
    "MatMulInteger": 1, "ConvInteger": 1, "DynamicQuantizeMatMul": 1, "MatMulIntegerToFloat": 1, "QAttention": 1,
    "DynamicQuantizeLSTM": 1, "QLinearMatMul": 3, "QLinearConv": 3, "QGemm": 3,
}  # fmt: skip


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    kernels = [node for node in variant.facts.nodes if node.op_type in _WEIGHT_INPUT]
    wide, theirs = _wide_kernels(variant), len(_wide_kernels(standard))
    count = f"{len(wide)} of {len(kernels)} integer kernels have signed weights beyond code 64"
    if not wide:
        return Finding("ruled_out", count)
    dot_product = evidence.host.has_int8_dot_product
    if _is_x86(evidence) and isinstance(dot_product, Missing):
        return Finding("not_checked", f"{count}; whether this CPU sums in 32 bits is not known: {dot_product.reason}")
    excuse = _excuse(evidence)
    if excuse:
        return Finding("ruled_out", f"{count}, but {excuse}")
    if len(wide) <= theirs:
        return Finding("ruled_out", f"the standard has as many: {count}, the standard {theirs}")
    reason = f"{count}, and this CPU clips sums of two products at 16 bits (standard: {theirs})"
    return Finding("found", reason, tuple(node.name or node.outputs[0] for node in wide))


def _is_x86(evidence: Evidence) -> bool:
    return evidence.host.cpu.architecture.lower() in X86


def _excuse(evidence: Evidence) -> str:
    """Why sums are not clipped here, if there is a reason."""
    if not _is_x86(evidence):
        return f"{evidence.host.cpu.architecture} sums products in 32 bits"
    if evidence.host.has_int8_dot_product is True:
        return f"this CPU has {_vnni(evidence)}: sums in 32 bits"
    if evidence.variant.variant.options.get(OPTION) == "1":
        return f"{OPTION}=1 takes the exact way"
    return ""


def _wide_kernels(index: GraphIndex) -> list[Node]:
    """Integer kernels whose int8 weights may overflow 16 bits."""
    wide = []
    for node in index.facts.nodes:
        position = _WEIGHT_INPUT.get(node.op_type)
        if position is None or len(node.inputs) <= position:
            continue
        weight = index.constant(node.inputs[position])
        if weight is not None and weight.dtype == "int8" and (weight.peak_share or 0.0) > SAFE_SHARE:
            wide.append(node)
    return wide


def _vnni(evidence: Evidence) -> str:
    isa = evidence.host.cpu.isa
    names = [] if isinstance(isa, Missing) else [name for name in isa if "vnni" in name or name == "amx_int8"]
    return " and ".join(names) or "an int8 dot product"


def _exact_sums(draft: OnnxDraft) -> int:
    if draft.variant.runtime != "onnxruntime" or draft.options.get(OPTION) == "1":
        return 0
    draft.options[OPTION] = "1"
    return 1


CAUSE = Cause(
    id="saturating_integers",
    title="int8 sums clipped at 16 bits",
    dimension="hardware",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="exact_integer_sums",
            title="let the runtime take the exact kernels for int8",
            safety="CLOSE",
            step=Step.SESSION,
            apply=_exact_sums,
        ),
    ),
)
