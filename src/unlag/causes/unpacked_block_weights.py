"""Weights in blocks of few bits, unpacked for a float product.

What it is: MatMulNBits keeps weights in blocks of 2, 4 or 8 bits and makes floats of them in front of the product,
at every run; or it computes from the codes at a number of rows where that does not pay.

Why it costs: such weights save reading memory, which is what a product with one row waits for. With many rows the
product itself is the work, and unpacking is added to it. Without ``accuracy_level`` 4 the activations are not
quantized, so the arithmetic is a float one: 8-bit blocks are then turned into a float matrix as large as the weight.

How it is seen: in the profile, the executed MatMulNBits take a quarter longer than the standard's float products of
the same sizes, by more than a fiftieth of the run.

Remedy: ``accuracy_level`` 4, integer arithmetic on the blocks, where it is not set and the CPU has an int8 dot
product. Otherwise the weights are unpacked once, into float constants; the file grows by four to eight.

Safety: close with integer arithmetic: activations are rounded to 8 bits. Close with float constants too, where the
kernel rounded them before.

Source: pytorch#122813, transformers#34310, onnxruntime-genai#406, bitsandbytes#490, bitsandbytes#347, FastChat#1698.
"""

from __future__ import annotations

import onnx_ir as ir

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.model.facts import Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.observe.products import BLOCK_PRODUCTS, Product, race_products
from unlag.rewrites.float_products import float_products
from unlag.rewrites.fold_dequantize import fold_dequantize

INTEGER_ARITHMETIC = 4
"""The accuracy level that lets the kernel quantize activations to int8; 0, 1 and none keep float32."""
SLOWER = 1.25
SHARE = 0.02


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = ([n for n in side.facts.nodes if n.op_type in BLOCK_PRODUCTS] for side in (variant, standard))
    if not ours:
        return Finding("ruled_out", "0 products by weights packed in blocks")
    floats = sum(_computes_in_float(node) for node in ours)
    count = f"{len(ours)} products by weights packed in blocks, {floats} of them in float arithmetic"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}; the standard has {len(theirs)}")
    race = race_products(evidence, variant, lambda p: p.op_type in BLOCK_PRODUCTS)
    if race is None:
        if isinstance(evidence.standard.profile, Missing):
            return Finding("not_checked", f"{count}; the standard has no profile: {evidence.standard.profile.reason}")
        return Finding("not_checked", f"{count}; the standard has no float products of their sizes to compare with")
    if race.ratio <= SLOWER or race.excess_share <= SHARE:
        return Finding("ruled_out", f"{count}, {race.ratio:.2f} times the time of floats: {race.words()}")
    words = f"{count}, {race.ratio:.1f} times as slow as floats: {race.words()} (standard: {len(theirs)})"
    return Finding("found", words, tuple(p.name for p in race.products), _fitting(evidence, race.products))


def _computes_in_float(node: Node) -> bool:
    return node.attributes.get("accuracy_level", 0) != INTEGER_ARITHMETIC


def _fitting(evidence: Evidence, products: tuple[Product, ...]) -> str:
    """The remedy for these products on this machine.

    With an int8 dot product, integer arithmetic on 8-bit blocks was measured to be as fast as floats at 128 rows, and
    nearly twice as fast at one row.
    """
    floats = all(p.node is not None and _computes_in_float(p.node) for p in products)
    pays = floats and evidence.host.has_int8_dot_product is True
    return "integer_block_products" if pays else "float_block_products"


def _compute_in_integers(draft: OnnxDraft) -> int:
    changed = 0
    for node in draft.model.graph:
        if node.op_type in BLOCK_PRODUCTS and node.attributes.get_int("accuracy_level", 0) != INTEGER_ARITHMETIC:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", INTEGER_ARITHMETIC)
            changed += 1
    return changed


def _compute_in_floats(draft: OnnxDraft) -> int:
    changed = float_products(draft.model, lambda product: product.node.op_type in BLOCK_PRODUCTS)
    # The runtime makes block products of dequantized weights by itself: then the file has none.
    return changed or fold_dequantize(draft.model)


CAUSE = Cause(
    id="unpacked_block_weights",
    title="block-packed weights unpacked for float products",
    dimension="quantization",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed", "profile"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="float_block_products",
            title="unpack the blocks once, into float constants",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=_compute_in_floats,
        ),
        Remedy(
            id="integer_block_products",
            title="let products by blocks compute in int8 (accuracy_level 4)",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=_compute_in_integers,
        ),
    ),
)
