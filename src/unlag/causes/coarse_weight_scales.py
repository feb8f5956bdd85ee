"""One int8 scale for a weight whose columns differ.

What it is: an int8 weight has one scale for the whole matrix, though its columns differ in range.

Why it costs: the scale is set by the largest weight of all. A column whose own largest weight is a quarter of it is
left with a quarter of the codes, two bits less; with one outlier in the matrix most columns keep two or three
codes. It costs accuracy, not time: a scale for each column is as fast.

How it is seen: among int8 weights with one scale, the median over the columns of the largest code used, as a share
of the largest possible, is below one half: at least one bit is lost in half of the columns.

Remedy: make new codes with one scale a column, from the standard's float weights (found by their values).

Safety: close. The new weights are nearer to the standard's than the old ones.

Source: onnxruntime#12854, onnxruntime#9599, tensorflow#40183, pytorch#45185, ao#4292.
"""

from __future__ import annotations

from statistics import median

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.draft import OnnxDraft
from unlag.model.facts import GraphIndex
from unlag.observe.align import align_weights
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.requantize_weights import requantize_from
from unlag.rewrites.weight_reads import WeightRead, table_reads, weight_reads

USED_RANGE = 0.5
"""Below it the median column loses a whole bit."""
FEWEST_ROWS = 32
"""The largest of fewer elements says little about a column's range; even normal ones would look coarse."""


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    stored, coarse, theirs = _int8_weights(variant), _coarse(variant), len(_coarse(standard))
    if not stored:
        return Finding("ruled_out", "0 weights are stored as int8 with a scale")
    if not coarse:
        single = sum(_has_one_scale(variant, read) for read in stored)
        detail = f"{len(stored) - single} have a scale for each channel, {single} use at least half of their range"
        return Finding("ruled_out", f"0 of {len(stored)} int8 weights are coarse: {detail}")
    if len(coarse) <= theirs:
        return Finding("ruled_out", f"the standard's are as coarse: {theirs} weights, the variant {len(coarse)}")
    share = median(read.constant.peak_share or 0.0 for read in coarse)
    reason = f"{len(coarse)} of {len(stored)} int8 weights have one scale, of which the median column uses {share:.0%}"
    return Finding("found", reason, tuple(read.stored for read in coarse))


def _coarse(index: GraphIndex) -> list[WeightRead]:
    """Weights with one scale, of which half of the columns use less than half."""
    return [
        read
        for read in _int8_weights(index)
        if _has_one_scale(index, read)
        and (read.constant.peak_share or 1.0) < USED_RANGE
        and read.constant.shape[0] >= FEWEST_ROWS
    ]


def _int8_weights(index: GraphIndex) -> list[WeightRead]:
    reads = [*weight_reads(index), *table_reads(index)]
    return [read for read in reads if read.is_dequantized and read.constant.dtype in {"int8", "uint8"}]


def _has_one_scale(index: GraphIndex, read: WeightRead) -> bool:
    scale = None if read.scale is None else index.constant(read.scale)
    return scale is not None and all(size == 1 for size in scale.shape)


def _requantize(draft: OnnxDraft) -> int:
    return requantize_from(draft.model, draft.standard, align_weights(draft.standard, draft.model))


CAUSE = Cause(
    id="coarse_weight_scales",
    title="one int8 scale for a whole weight",
    dimension="quantization",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="requantize_weights",
            title="new int8 codes with a scale for each column, from the standard's weights",
            safety="CLOSE",
            step=Step.REQUANTIZE,
            apply=_requantize,
        ),
    ),
)
