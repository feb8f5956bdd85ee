"""Residual additions and normalizations run apart, which the standard runs as one.

What it is: the standard's graph has each residual addition fused into the LayerNormalization behind it; the variant
adds first and normalizes after.

Why it costs: bias, residual and normalization are three passes over the activation where one would do. It counts
when the activation does not stay in the cache, that is for long sequences and large batches; on small ones a fused
kernel can even lose, which the proof tells.

How it is seen: fewer SkipLayerNormalization in the variant's executed graph than in the standard's, and more
LayerNormalization. Fusions need to know that both sides of the addition have one shape, so a lost shape breaks them.

Remedy: replace addition and normalization by one operator; the embeddings' look-ups, additions and normalization too.

Safety: close. The same function; sums are taken in another order.

Source: onnxruntime#10919, onnxruntime#8636, onnxruntime#5113 (of L layers, 2·L such fusions are expected).
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.observe.passes import has_fewer_passes
from unlag.rewrites.fuse_embedding_norm import fuse_embedding_norm
from unlag.rewrites.fuse_skip_layer_norm import fuse_skip_layer_norm

FUSED, PLAIN = "SkipLayerNormalization", "LayerNormalization"


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = _count(variant, FUSED), _count(standard, FUSED)
    apart, theirs_apart = _count(variant, PLAIN), _count(standard, PLAIN)
    counts = f"{apart} normalizations run apart from their residual, {ours} with it"
    other = f"the standard: {theirs_apart} and {theirs}"
    if ours >= theirs or apart <= theirs_apart:
        return Finding("ruled_out", f"{counts} ({other})")
    in_standard, in_variant = file_graphs(evidence)
    if has_fewer_passes(evidence) and _count(in_variant, FUSED) >= _count(in_standard, FUSED):
        return Finding("ruled_out", f"{counts} ({other}), but the files are alike: the passes that fuse are off")
    where = tuple(node.name or node.outputs[0] for node in variant.facts.nodes if node.op_type == PLAIN)
    return Finding("found", f"{counts} ({other})", where)


def _count(index: GraphIndex, op_type: str) -> int:
    return sum(node.op_type == op_type for node in index.facts.nodes)


CAUSE = Cause(
    id="unfused_residual_norm",
    title="residual and normalization not fused",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="fuse_skip_layer_norm",
            title="fuse each residual addition into the normalization behind it",
            safety="CLOSE",
            step=Step.JOIN,
            apply=lambda draft: fuse_skip_layer_norm(draft.model),
        ),
        Remedy(
            id="fuse_embedding_norm",
            title="look up, add and normalize the embeddings by one operator",
            safety="CLOSE",
            step=Step.JOIN,
            apply=lambda draft: fuse_embedding_norm(draft.model),
        ),
    ),
)
