"""Branches and loops that the runtime executes.

What it is: the executed graph holds If, Loop or Scan nodes that the standard doesn't have.

Why it costs: the body of a branch or loop is a graph of its own. Nothing is fused across its border, weights that are
looked up in it are not packed in advance, and each iteration pays for setting it up, copying what is carried and
collecting what it gives.

How it is seen: If, Loop and Scan in the executed graph, more than in the standard's. Scripted exporters write an If
for each squeeze and a Loop for each Python loop; runtimes take only the simplest of them out.

Remedy: replace an If whose condition is the same in every run by its branch; write a loop with a known number of
iterations and no early end out.

Safety: exact. The same nodes run in the same order.

Source: onnxruntime#5958, onnxruntime#10303, onnxruntime#5953.
"""

from __future__ import annotations

from collections import Counter

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.observe.passes import has_fewer_passes
from unlag.rewrites.inline_branches import inline_branches
from unlag.rewrites.unroll_loops import resolve_control_flow

_KINDS = frozenset({"If", "Loop", "Scan"})


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = _control(variant), _control(standard)
    counts = Counter(node.op_type for node in ours)
    said = ", ".join(f"{count} {op_type}" for op_type, count in counts.most_common()) or "0 branches or loops"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{said} executed, in the standard {len(theirs)}")
    in_standard, in_variant = (_control(index) for index in file_graphs(evidence))
    if has_fewer_passes(evidence) and len(in_variant) <= len(in_standard):
        return Finding("ruled_out", f"{said}, and {len(in_standard)} in the standard's file; here the passes are off")
    inner = sum(node.depth > 0 for node in variant.facts.nodes)
    loops = counts["Loop"] + counts["Scan"] > sum(node.op_type != "If" for node in theirs)
    return Finding(
        "found",
        f"{said} executed, with {inner} nodes inside (standard: {len(theirs)})",
        tuple(node.name or node.outputs[0] for node in ours),
        "unroll_loops" if loops else None,
    )


def _control(index: GraphIndex) -> list[Node]:
    return [node for node in index.facts.nodes if node.op_type in _KINDS and not node.domain]


CAUSE = Cause(
    id="control_flow",
    title="branches and loops in the graph",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="inline_branches",
            title="replace branches that are always taken by their nodes",
            safety="EXACT",
            step=Step.INLINE,
            apply=lambda draft: inline_branches(draft.model),
        ),
        Remedy(
            id="unroll_loops",
            title="write loops of a known count out, and inline branches that are always taken",
            safety="EXACT",
            step=Step.INLINE,
            apply=lambda draft: resolve_control_flow(draft.model),
        ),
    ),
    knots={"disabled_graph_passes": "with its passes on, the runtime inlines branches with a constant condition"},
)
