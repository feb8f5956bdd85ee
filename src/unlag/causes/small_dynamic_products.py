"""Products too small or too thin for dynamic quantization.

What it is: a matrix product is computed in int8 with scales taken at every run, though it has few inputs, few outputs
or a small weight; or both of its factors are activations, which are both quantized anew.

Why it costs: quantizing reads every activation twice, for its range and for its codes, and every result is scaled
back. That is proportional to rows · inputs + rows · outputs, while what int8 saves is proportional to
rows · inputs · outputs. With 16 inputs there is nothing to be saved, and small operators cost as much as their call.

How it is seen: in the profile, the dynamic products of such sizes, with their share of the activation's quantization
and the scaling behind them, take a quarter longer than the standard's float products of the same sizes, by more
than a hundredth of the run. Large products are not looked at.

Remedy: these products in floats again, their weights dequantized once. Small means: up to 32 inputs or outputs, up to
128 · 128 weights, or no constant weight at all.

Safety: close. Activations are not rounded any more.

Source: onnxruntime#10153, onnxruntime#9660, tract#413, ao#2989, pytorch#62804, pytorch#149500.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.observe.products import DYNAMIC_PRODUCTS, Product, products_of, profile_of, race_products
from unlag.rewrites.float_products import float_products
from unlag.rewrites.integer_products import IntegerProduct

THIN = 32
"""Inputs or outputs up to which scaling or quantizing outweighs what 8-bit products save, at any number of rows."""
SMALL_WEIGHT = 128 * 128
"""Elements of a weight, up to which the operator's call is most of its time unless there are hundreds of rows."""
SLOWER = 1.25
SHARE = 0.01


def is_small(k: int, n: int) -> bool:
    """Whether a weight of k inputs and n outputs is small or thin."""
    return min(k, n) <= THIN or k * n <= SMALL_WEIGHT


def _detect(evidence: Evidence) -> Finding:
    _standard, variant = executed_graphs(evidence)
    dynamic = [p for p in products_of(profile_of(evidence.variant), variant) if p.op_type in DYNAMIC_PRODUCTS]
    small = [p for p in dynamic if _is_small_product(variant, p)]
    count = f"{len(small)} of {len(dynamic)} dynamically quantized products are small, thin or of two activations"
    if not small:
        return Finding("ruled_out", count)
    race = race_products(evidence, variant, lambda p: _is_small_product(variant, p))
    if race is None:
        if isinstance(evidence.standard.profile, Missing):
            return Finding("not_checked", f"{count}; the standard has no profile: {evidence.standard.profile.reason}")
        return Finding("not_checked", f"{count}; the standard has no float products of their sizes to compare with")
    if race.ratio <= SLOWER or race.excess_share <= SHARE:
        return Finding("ruled_out", f"{count}, {race.ratio:.2f} times as slow: {race.words()}")
    quantizing_ms = sum(p.added_ms for p in race.products)
    return Finding(
        "found",
        f"{count} and {race.ratio:.1f} times as slow: {race.words()}"
        f" ({quantizing_ms:.2g} ms are for quantizing and scaling around them)",
        tuple(p.name for p in race.products),
    )


def _is_small_product(index: GraphIndex, product: Product) -> bool:
    if product.op_type not in DYNAMIC_PRODUCTS:
        return False
    two_activations = product.node is not None and index.constant(product.node.inputs[1]) is None
    return two_activations or is_small(product.k, product.n)


def _is_chosen(product: IntegerProduct) -> bool:
    if product.node.op_type not in DYNAMIC_PRODUCTS:
        return False
    return product.other is not None or is_small(*product.shape[-2:])


CAUSE = Cause(
    id="small_dynamic_products",
    title="dynamic int8 for products that are too small",
    dimension="quantization",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed", "profile"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="float_small_products",
            title="take small and thin products back to float",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=lambda draft: float_products(draft.model, _is_chosen),
        ),
    ),
    knots={"missing_integer_dot_product": "without an int8 dot product even larger products save nothing"},
)
