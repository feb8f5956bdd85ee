"""Signed activations in integer kernels that are made for unsigned ones.

What it is: activations are quantized to int8, on an x86 CPU whose integer kernels multiply unsigned activations by
signed weights.

Why it costs: signed times signed has no such kernel. Operators in integer form run on a portable loop, ten to twenty
times slower than the unsigned kernel and slower than floats. In QDQ form the runtime shifts to unsigned codes while it
loads the model, but not tensors that are read at several places; a product that has one side shifted and one not is
not fused, and runs in floats between DequantizeLinear and QuantizeLinear.

How it is seen: in the graph that the runtime executes, kernels read int8 activations (zero points of int8, weights do
not count), or operators stand between signed and unsigned codes and are not fused.

Remedy: shift codes and zero points by 128, which makes the same numbers unsigned. On a CPU that adds two such
products in 16 bits, weights with large codes are shifted as well: unsigned times unsigned is exact there.

Safety: exact for operators in integer form, (c + 128) − (z + 128) = c − z. Close where a product in QDQ form is fused
by it, or weights are shifted: sums are rounded to codes in another place.

Source: onnxruntime#6732, onnxruntime#17278, onnxruntime#12072; ONNX Runtime's page on quantization ("S8S8 with
QOperator will be slow on x86-64").
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.rewrites.shift_to_unsigned import SAFE_CODE, shift_to_unsigned

X86 = frozenset({"x86_64", "amd64", "i686", "x86"})
SIGNED_DOT_PRODUCTS = frozenset({"avx_vnni_int8"})
"""Instructions that multiply signed by signed bytes."""

_ZERO_POINTS = {
    "QLinearConv": (2, 0), "QLinearMatMul": (2, 0), "QGemm": (2, 0), "MatMulInteger": (2, 0), "ConvInteger": (2, 0),
    "MatMulIntegerToFloat": (4, 0),
}  # fmt: skip
"""Kernels with a matrix product: inputs that hold the activation's zero point and the activation."""
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = _slow(variant), _slow(standard)
    kernels = sum(node.op_type in _ZERO_POINTS for node in variant.facts.nodes)
    signed = sum(node.op_type in _ZERO_POINTS for node in ours)
    count = (
        f"{signed} of {kernels} integer products take signed activations,"
        f" {len(ours) - signed} products are not fused between signed and unsigned ones"
    )
    if not ours:
        return Finding("ruled_out", count)
    host = evidence.host
    if host.cpu.architecture.lower() not in X86:
        return Finding("ruled_out", f"{count}, but {host.cpu.architecture} multiplies signed by signed as fast")
    isa = host.cpu.isa
    quick = () if isinstance(isa, Missing) else sorted(SIGNED_DOT_PRODUCTS.intersection(isa))
    if quick:
        return Finding("ruled_out", f"{count}, but this CPU has {quick[0]} for signed by signed")
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    clips = evidence.host.has_int8_dot_product is not True and _has_wide_weights(variant)
    reason = f"{count} (standard: {len(theirs)}); the kernels of this CPU want unsigned ones"
    where = tuple(node.name or node.outputs[0] for node in ours)
    if clips:
        return Finding("found", reason, where, "shift_all_to_unsigned")
    return Finding("found", reason, where, "shift_to_unsigned" if signed == len(ours) else "shift_pairs_to_unsigned")


def _slow(index: GraphIndex) -> list[Node]:
    return [node for node in index.facts.nodes if _takes_signed(index, node) or _stands_between(index, node)]


def _takes_signed(index: GraphIndex, node: Node) -> bool:
    """Whether an integer product reads int8 activations."""
    places = _ZERO_POINTS.get(node.op_type)
    if places is None or index.constant(node.inputs[places[1]]) is not None:
        return False
    if len(node.inputs) > places[0] and node.inputs[places[0]]:
        return _type_of(index, node.inputs[places[0]]) == "int8"
    return index.facts.types.get(node.inputs[places[1]]) == "int8"


def _stands_between(index: GraphIndex, node: Node) -> bool:
    """Whether a float product reads and makes codes of activations, some of them signed and some not."""
    if node.op_type not in _PRODUCTS:
        return False
    before = [index.producer(name) for name in node.inputs[:2]]
    after = index.consumers.get(node.outputs[0], [])
    if not all(maker is not None and maker.op_type == "DequantizeLinear" for maker in before):
        return False
    pairs = [n for n in (*before, *after) if n is not None and n.op_type in {"DequantizeLinear", "QuantizeLinear"}]
    activations = [pair for pair in pairs if index.constant(pair.inputs[0]) is None and len(pair.inputs) > 2]
    return {_type_of(index, pair.inputs[2]) for pair in activations} == {"int8", "uint8"}


def _type_of(index: GraphIndex, name: str) -> str:
    constant = index.constant(name)
    return index.facts.types.get(name, "") if constant is None else constant.dtype


def _has_wide_weights(index: GraphIndex) -> bool:
    constants = index.facts.constants.values()
    return any(c.dtype == "int8" and len(c.shape) > 1 and (c.abs_max or 0.0) > SAFE_CODE for c in constants)


CAUSE = Cause(
    id="signed_activations",
    title="signed activations for unsigned kernels",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="shift_to_unsigned",
            title="shift int8 activations by 128, to uint8",
            safety="EXACT",
            step=Step.REQUANTIZE,
            apply=lambda draft: shift_to_unsigned(draft.model),
        ),
        Remedy(
            id="shift_pairs_to_unsigned",
            title="shift int8 activations by 128, so that products between pairs are fused",
            safety="CLOSE",
            step=Step.REQUANTIZE,
            apply=lambda draft: shift_to_unsigned(draft.model),
        ),
        Remedy(
            id="shift_all_to_unsigned",
            title="shift int8 activations, and weights with codes beyond 64, by 128",
            safety="CLOSE",
            step=Step.REQUANTIZE,
            apply=lambda draft: shift_to_unsigned(draft.model, weights=True),
        ),
    ),
    knots={"unfused_quantization": "products between signed and unsigned codes are left between pairs"},
)
