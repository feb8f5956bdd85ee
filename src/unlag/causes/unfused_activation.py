"""GELU run as the elementwise nodes it was written in.

What it is: GELU runs as the elementwise nodes that it was written in, while the standard's is one operator.

Why it costs: the activation of a feed-forward layer is the widest tensor of a transformer, four times the hidden
size. Division, erf, addition and two products each read and write it once; fused, with the bias, it is one pass
that stays in the cache.

How it is seen: in the executed graph, the nodes around an Erf or Tanh compute GELU (they are run on sample values),
more often than in the standard's. Runtimes match a few orders of the factors; x · (0.5 · (1 + erf)), as newer
exporters write it, is none of ONNX Runtime's.

Remedy: replace the nodes by one Gelu, which runtimes fuse with the bias in front of it; by the standard's own
operator, whose kernel is another one; or by the approximation with tanh.

Safety: close. The same function, rounded fewer times; the approximation is off by 5e-4 at most.

Source: onnxruntime#10919, onnxruntime#10359, executorch!12360 for the size of the effect on another activation.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.observe.passes import has_fewer_passes
from unlag.rewrites.fuse_gelu import find_gelu, fuse_gelu, spelling_of
from unlag.rewrites.standard_gelu import approximate_gelu, standard_gelu

FUSED = frozenset({"Gelu", "BiasGelu", "FastGelu", "QuickGelu"})


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = _spelled(variant), _spelled(standard)
    fused = sum(node.op_type in FUSED for node in variant.facts.nodes)
    count = f"{len(ours)} of {len(ours) + fused} GELU activations are spelled out"
    if not ours:
        return Finding("ruled_out", count)
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    known = set(_spelled(file_graphs(evidence)[0]).values()) - set(theirs.values())
    if has_fewer_passes(evidence) and known.issuperset(ours.values()):
        return Finding("ruled_out", f"{count}, in a way that passes fuse in the standard; here these passes are off")
    return Finding("found", f"{count} (standard: {len(theirs)})", tuple(ours))


def _spelled(index: GraphIndex) -> dict[str, tuple[str, ...]]:
    """How each GELU is written, by the name of its Erf or Tanh node."""
    found = {node.name or node.outputs[0]: find_gelu(index, node) for node in index.facts.nodes}
    return {name: spelling_of(index, gelu) for name, gelu in found.items() if gelu is not None}


CAUSE = Cause(
    id="unfused_activation",
    title="GELU spelled out in elementwise nodes",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="fuse_gelu",
            title="replace the nodes of each GELU by one operator",
            safety="CLOSE",
            step=Step.FUSE,
            apply=lambda draft: fuse_gelu(draft.model),
        ),
        Remedy(
            id="standard_gelu",
            title="compute each GELU by the standard's own operator",
            safety="CLOSE",
            step=Step.JOIN,
            apply=lambda draft: standard_gelu(draft.model),
        ),
        Remedy(
            id="approximate_gelu",
            title="compute each GELU by its approximation with tanh",
            safety="CLOSE",
            step=Step.JOIN,
            apply=lambda draft: approximate_gelu(draft.model),
        ),
    ),
)
