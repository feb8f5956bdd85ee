"""Normalizations run as the nodes that they were written in.

What it is: LayerNormalization (or its form without the mean, RMS normalization) runs as means, differences, squares
and roots, while the standard's is one operator.

Why it costs: nine nodes read and write the activation six times where one pass would do. It also keeps the residual
addition in front of it from being fused.

How it is seen: in the executed graph, the nodes around a square root compute the normalization (they are run on sample
values), more often than in the standard's. Runtimes match a few spellings; a square written as Mul(x, x), a Reciprocal
of the root or a variance of E[x²] − E[x]² is none of ONNX Runtime's.

Remedy: replace the nodes by one operator.

Safety: close. The same function, rounded fewer times.

Source: onnxruntime#10919, onnxruntime#8636, onnxruntime!27418, onnxruntime!9108.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.observe.passes import has_fewer_passes
from unlag.rewrites.fuse_layer_norm import find_normalization, fuse_layer_norm

FUSED = frozenset(
    {
        "LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization", "RMSNormalization",
        "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = _spelled(variant), _spelled(standard)
    fused = sum(node.op_type in FUSED for node in variant.facts.nodes)
    count = f"{len(ours)} of {len(ours) + fused} normalizations are spelled out"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    in_standard, in_variant = (_spelled(index) for index in file_graphs(evidence))
    if has_fewer_passes(evidence) and len(in_variant) <= len(in_standard):
        return Finding("ruled_out", f"{count}, and {len(in_standard)} in the standard's file; here the passes are off")
    return Finding("found", f"{count} (standard: {len(theirs)})", tuple(ours))


def _spelled(index: GraphIndex) -> list[str]:
    """Results of the normalizations that are spelled out."""
    found = (find_normalization(index, node) for node in index.facts.nodes)
    return [norm.result for norm in found if norm is not None]


CAUSE = Cause(
    id="unfused_layer_norm",
    title="normalization spelled out in elementwise nodes",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="fuse_layer_norm",
            title="replace the nodes of each normalization by one operator",
            safety="CLOSE",
            step=Step.FUSE,
            apply=lambda draft: fuse_layer_norm(draft.model),
        ),
    ),
)
