"""Weights stored with too few bits.

What it is: weights are stored with 4 bits or fewer, where the standard has floats.

Why it costs: 4 bits are 15 steps between the smallest and the largest weight of a block. Rounded to the nearest step,
weights are off by a tenth of their own size, at 8 bits by half of a hundredth. Each layer adds its part. It costs
accuracy, not time.

How it is seen: MatMulNBits of few bits, or DequantizeLinear from such codes, in the variant's file; the error that
rounding makes of weights that are spread normally is above 3 %. Codes that training or calibration has chosen may do
better: where accuracy was measured and is not lower than the standard's, this is not a cause.

Remedy: the standard's own float weights, found by their values, in their place.

Safety: close. It brings back what was rounded away.

Source: onnxruntime#12854, tensorflow#40183, onnxruntime#9599, pytorch#45185, ao#4292.
"""

from __future__ import annotations

import math
from statistics import median

import msgspec

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.draft import OnnxDraft
from unlag.model.facts import GraphIndex
from unlag.observe.align import align_weights
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.float_products import float_products
from unlag.rewrites.fold_rounded import fold_rounded
from unlag.rewrites.restore_weights import restore_weights
from unlag.rewrites.weight_reads import weight_reads

FEW_BITS = 4
TOO_FAR = 0.03
"""Relative error of a weight. 8-bit codes with one scale a column stay below 0.01, 4-bit ones are at 0.07 and more."""
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


class _Rounded(msgspec.Struct, frozen=True):
    """One stored weight: how many bits a code has, and how many weights share a scale."""

    name: str
    bits: int
    block: int

    @property
    def error(self) -> float:
        """Expected root mean square of the rounding, over that of the weights, for normally spread weights."""
        peak = math.sqrt(2 * math.log(max(self.block, 2)))
        return peak / ((1 << (self.bits - 1)) - 1) / math.sqrt(12) if self.bits > 1 else 1.0


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    ours = _rounded(variant)
    far, theirs = [w for w in ours if w.error > TOO_FAR], [w for w in _rounded(standard) if w.error > TOO_FAR]
    if not far:
        worst = f", whose rounding error is about {max(w.error for w in ours):.1%}" if ours else ""
        return Finding("ruled_out", f"0 of {len(ours)} quantized weights have {FEW_BITS} bits or fewer{worst}")
    bits, error = sorted({w.bits for w in far}), median(w.error for w in far)
    words = f"{len(far)} of {len(ours)} quantized weights have {' or '.join(map(str, bits))} bits"
    if len(far) <= len(theirs):
        return Finding("ruled_out", f"{words}, in the standard {len(theirs)}")
    change = evidence.accuracy_change
    if change is not None and change.high >= 0:
        measured = f"{change.estimate:+.2f} points, {change.low:+.2f} to {change.high:+.2f}"
        return Finding("ruled_out", f"{words}, but accuracy is not measurably lower than the standard's: {measured}")
    return Finding(
        "found",
        f"{words}, rounded by about {error:.0%} of their size (standard: {len(theirs)})",
        tuple(w.name for w in far),
    )


def _rounded(index: GraphIndex) -> list[_Rounded]:
    """Every weight that is stored as codes, in either form."""
    found = []
    for node in index.facts.nodes:
        if node.op_type == "MatMulNBits":
            bits, block = node.attributes.get("bits", FEW_BITS), node.attributes.get("block_size", 32)
            if isinstance(bits, int) and isinstance(block, int):
                found.append(_Rounded(node.name or node.outputs[0], bits, block))
    for read in weight_reads(index):
        bits = _BITS.get(read.constant.dtype, 0) if read.is_dequantized else 0
        if bits:
            sizes = [n.attributes.get("block_size", 0) for n in read.chain if n.op_type == "DequantizeLinear"]
            blocks = [size for size in sizes if isinstance(size, int) and size]
            found.append(_Rounded(read.stored, bits, blocks[0] if blocks else read.constant.shape[0]))
    return found


def _restore(draft: OnnxDraft) -> int:
    """Widen weights of few bits, then put the standard's values in their place."""
    before = {str(name) for name in draft.model.graph.initializers}
    widened = float_products(draft.model, lambda product: product.bits <= FEW_BITS)
    widened += fold_rounded(draft.model)
    if not widened:
        return 0
    made = {str(name) for name in draft.model.graph.initializers} - before
    sources = align_weights(draft.standard, draft.model)
    restore_weights(draft.model, draft.standard, {name: s for name, s in sources.items() if name in made})
    return widened


CAUSE = Cause(
    id="rounded_weights",
    title="weights stored with too few bits",
    dimension="quantization",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="restore_float_weights",
            title="put the standard's float weights in place of codes of few bits",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=_restore,
        ),
    ),
)
