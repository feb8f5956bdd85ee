"""Attention run as more operators than the standard's.

What it is: the standard runs attention, or its query, key and value projections, as fewer operators than the
variant does: fused against spelled out, or one packed projection against three.

Why it costs: three narrow matrix products read the same activation three times and have a third of the columns to
share among the threads. Spelled-out attention writes the scores, reads them for the mask, writes them, reads them
for the Softmax, and transposes queries, keys and values into heads in passes of their own.

How it is seen: among the attention blocks of the executed graphs, the variant has more that are spelled out than
the standard, or more matrix products in front of them. Exporters, quantizers that insert nodes, and casts in the
middle break the patterns that runtimes fuse; nothing warns about it.

Remedy: replace each block by one fused operator, its projections packed where they are constants or left in front of
it; or pack the projections alone.

Safety: close. Sums are taken in another order; padding is masked by the same mask.

Source: onnxruntime#10919, onnxruntime#10359, onnxruntime#8636, onnxruntime!27418, onnxruntime!5651,
onnxruntime!9108, onnxruntime#5113.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.draft import OnnxDraft
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.observe.passes import LEVELS, OPTION, has_fewer_passes
from unlag.rewrites.attention_pattern import AttentionBlock, attention_blocks
from unlag.rewrites.fold_dequantize import fold_dequantize
from unlag.rewrites.fuse_attention import fuse_attention
from unlag.rewrites.fuse_heads import fuse_heads
from unlag.rewrites.pack_projections import pack_projections


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    theirs, ours = _blocks(standard), _blocks(variant)
    if not ours:
        return Finding("ruled_out", f"0 attention blocks among {len(variant.facts.nodes)} executed nodes")
    counts = f"{_spelled(ours)} of {len(ours)} attention blocks are spelled out, behind {_products(ours)} projections"
    other = f"the standard: {_spelled(theirs)} of {len(theirs)}, behind {_products(theirs)}"
    if not _less_fused(ours, theirs):
        return Finding("ruled_out", f"{counts}, no more than in the standard ({other})")
    in_file, in_theirs = (_blocks(index) for index in reversed(file_graphs(evidence)))
    if has_fewer_passes(evidence) and not _less_fused(in_file, in_theirs):
        return Finding("ruled_out", f"{counts} ({other}), but the files are alike: the passes that fuse are off")
    # Only what brings the variant to the standard's level explains the gap; fusing further is the fix's work.
    remedy = "fuse_attention" if _spelled(ours) > _spelled(theirs) else "pack_projections"
    return Finding("found", f"{counts} ({other})", tuple(block.node for block in ours), remedy)


def _less_fused(ours: tuple[AttentionBlock, ...], theirs: tuple[AttentionBlock, ...]) -> bool:
    return _spelled(ours) > _spelled(theirs) or _products(ours) > _products(theirs)


def _blocks(index: GraphIndex) -> tuple[AttentionBlock, ...]:
    return attention_blocks(index.facts)


def _spelled(blocks: tuple[AttentionBlock, ...]) -> int:
    return sum(not block.fused for block in blocks)


def _products(blocks: tuple[AttentionBlock, ...]) -> int:
    """Matrix products that make queries, keys and values; those inside of a fused operator are none."""
    return sum(len({p.product for p in block.projections if p is not None}) for block in blocks)


def _pack(draft: OnnxDraft) -> int:
    """Pack the projections; weights stored as codes are widened first where the runtime does that itself at load."""
    packed = pack_projections(draft.model)
    if packed or draft.options.get(OPTION) == LEVELS[0]:
        return packed
    widened = draft.model.clone()  # widening alone would be a change that nobody counts
    fold_dequantize(widened)
    packed = pack_projections(widened)
    if packed:
        draft.model = widened
    return packed


CAUSE = Cause(
    id="unfused_attention",
    title="attention and its projections not fused",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="fuse_attention",
            title="replace each attention block by one fused operator",
            safety="CLOSE",
            step=Step.FUSE,
            apply=lambda draft: fuse_attention(draft.model),
        ),
        Remedy(
            id="fuse_heads",
            title="replace each attention block behind its projections by one fused operator",
            safety="CLOSE",
            step=Step.FUSE,
            apply=lambda draft: fuse_heads(draft.model),
        ),
        Remedy(
            id="pack_projections",
            title="pack query, key and value projections into one",
            safety="CLOSE",
            step=Step.JOIN,
            apply=_pack,
        ),
    ),
)
