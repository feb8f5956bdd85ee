"""Attention scores that miss their scale.

What it is: attention scores are not multiplied by 1/√(head size), or are multiplied twice, or by another factor.

Why it costs: the Softmax sees scores that are √(head size) times too large and picks one token where the model was
trained to mix many. It costs accuracy, not time; it gets in when a hand-written or fused kernel replaces the
exporter's pattern and its scale attribute is not set.

How it is seen: the constant factors between the projections and the Softmax are multiplied up, wherever they stand
(on the queries, on both sides, on the product, as Mul, Div or an attribute of a fused operator), and compared with
the standard's, block by block in the graphs' order. A factor that is folded into the query weights is not missing:
then these weights do not match the standard's, while the values' do.

Remedy: multiply the scores by the missing factor, before the mask is added.

Safety: close. It restores the standard's function, so outputs change on purpose.

Source: openvino#38256, openvino#27795, onnxruntime#29034, onnxruntime#18945, onnxruntime#4293.
"""

from __future__ import annotations

from collections.abc import Mapping

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence, WeightSource
from unlag.observe.graphs import file_graphs
from unlag.rewrites.attention_pattern import AttentionBlock, attention_blocks
from unlag.rewrites.restore_scale import missing_factors, restore_scale_from


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    theirs, ours = attention_blocks(standard.facts), attention_blocks(variant.facts)
    if not ours or not theirs:
        return Finding(
            "ruled_out", f"{len(ours)} attention blocks were found in the variant, {len(theirs)} in the standard"
        )
    if len(ours) != len(theirs):
        return Finding(
            "not_checked",
            f"the variant has {len(ours)} attention blocks, the standard {len(theirs)}: they can't be matched",
        )
    known = [block for block, other in zip(ours, theirs, strict=True) if None not in (block.scale, other.scale)]
    if not known:
        return Finding("not_checked", f"the scale of none of the {len(ours)} attention blocks can be told")
    factors = missing_factors(variant.facts, standard.facts)
    off = [block for block in ours if block.scores in factors and not _scale_is_folded(block, evidence.weights)]
    if not off:
        return Finding(
            "ruled_out", f"0 of {len(ours)} attention blocks: they scale by {known[0].scale:.4g}, as the standard does"
        )
    first = off[0]
    target = (first.scale or 1.0) * factors[first.scores]
    count = f"{len(off)} of {len(ours)} attention blocks"
    reason = f"{count} scale their scores by {first.scale:.4g}, the standard by {target:.4g}"
    return Finding("found", reason, tuple(block.node for block in off))


def _scale_is_folded(block: AttentionBlock, weights: Mapping[str, WeightSource]) -> bool:
    """Whether the values' weights are the standard's and the queries' or keys' are not."""
    names = [None if p is None else p.weight for p in block.projections]
    query, key, value = (name in weights for name in names)
    return value and not (query and key)


CAUSE = Cause(
    id="missing_attention_scale",
    title="attention scale missing",
    dimension="graph",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="restore_scale",
            title="multiply the attention scores by the standard's factor",
            safety="CLOSE",
            step=Step.RESTORE,
            apply=lambda draft: restore_scale_from(draft.model, draft.standard),
        ),
    ),
)
