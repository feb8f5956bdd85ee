"""Integer products on a CPU without an int8 dot product.

What it is: matrix products or convolutions are computed in int8 on a CPU that has no instruction for it (VNNI and AMX
on x86, dot product and i8mm on ARM), and they take as long as the standard's in float.

Why it costs: without that instruction four int8 products take three instructions, about as many as their float ones
take. What is left is the extra work: quantizing activations, packing, scaling results back.

How it is seen: the CPU lacks an int8 dot product, and in the profile the integer products and dense convolutions, with
what quantization adds to dynamic ones, take no less time than the standard's float ones of the same sizes. Products
that are too small anywhere, ConvInteger, and kernels slower than twice the float time are causes of their own.

Remedy: all integer products in floats again, their weights dequantized once. The model is as large as before it was
quantized. For size alone, 8-bit weights that are unpacked at load do.

Safety: close. Activations are not rounded any more.

Source: onnxruntime#20052, onnxruntime#17389, onnxruntime#6732, onnxruntime#5319, MNN#438, openvino#11710.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.causes.small_dynamic_products import is_small
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.observe.kernels import integer_kernels
from unlag.observe.products import DYNAMIC_PRODUCTS, STATIC_PRODUCTS, profile_of, race_products
from unlag.rewrites.float_operators import float_operators
from unlag.rewrites.float_products import float_products, float_recurrences

INTEGER_PRODUCTS = DYNAMIC_PRODUCTS | STATIC_PRODUCTS | {"QLinearConv"}
DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
UNOPTIMIZED = 2.0
"""Above it, the kernel and not the CPU is in the way."""
SHARE = 0.05
"""Of the run that the products must take to be in the way of anything."""


def _detect(evidence: Evidence) -> Finding:
    _standard, variant = executed_graphs(evidence)
    count = sum(node.op_type in INTEGER_PRODUCTS for node in variant.facts.nodes)
    words = f"{count} integer products and convolutions"
    has_it = evidence.host.has_int8_dot_product
    if not count:
        return Finding("ruled_out", words)
    if isinstance(has_it, Missing):
        return Finding("not_checked", f"{words}; whether the CPU has an int8 dot product is not known: {has_it.reason}")
    if has_it:
        return Finding("ruled_out", f"{words}, and this CPU has {_names(evidence)}")
    return _compare(evidence, f"{words} without an int8 dot product")


def _compare(evidence: Evidence, words: str) -> Finding:
    if isinstance(evidence.standard.profile, Missing):
        return Finding("not_checked", f"{words}; the standard has no profile: {evidence.standard.profile.reason}")
    ours_ms, standard_ms, where = _times(evidence)
    if not where:
        return Finding("not_checked", f"{words}; the standard has no float ones of their sizes to compare with")
    run_ms = profile_of(evidence.variant).run_ms
    times = (
        f"{len(where)} of them take {ours_ms:.3g} of {run_ms:.3g} ms, the standard's float ones {standard_ms:.3g} ms"
    )
    if ours_ms < standard_ms or ours_ms < SHARE * run_ms:
        return Finding("ruled_out", f"{words}, but {times}")
    return Finding("found", f"{words}: {times}", where)


def _times(evidence: Evidence) -> tuple[float, float, tuple[str, ...]]:
    """Our time, the standard's, and the names of the products that could be compared."""
    standard, variant = executed_graphs(evidence)
    kinds = DYNAMIC_PRODUCTS | STATIC_PRODUCTS
    race = race_products(evidence, variant, lambda p: p.op_type in kinds and not is_small(p.k, p.n))
    kernels = [
        kernel
        for kernel in integer_kernels(evidence, standard, variant)
        if kernel.family == "Conv" and kernel.group == 1 and kernel.ratio <= UNOPTIMIZED
    ]
    names = [] if race is None else [product.name for product in race.products]
    ours_ms = sum(k.ours_ms for k in kernels) + (0.0 if race is None else race.ours_ms)
    standard_ms = sum(k.standard_ms for k in kernels) + (0.0 if race is None else race.standard_ms)
    return ours_ms, standard_ms, (*names, *(k.name for k in kernels))


def _names(evidence: Evidence) -> str:
    isa = evidence.host.cpu.isa
    names = [] if isinstance(isa, Missing) else [name for name in isa if name in DOT_PRODUCTS]
    return " and ".join(names) or "an int8 dot product"


def _compute_in_floats(draft: OnnxDraft) -> int:
    changed = float_products(draft.model, lambda product: product.node.op_type in INTEGER_PRODUCTS)
    return changed + float_recurrences(draft.model) + float_operators(draft.model, lambda _node: True)


CAUSE = Cause(
    id="missing_integer_dot_product",
    title="int8 on a CPU without an int8 dot product",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed", "profile"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="float_integer_products",
            title="take integer products and convolutions back to float",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=_compute_in_floats,
        ),
    ),
)
