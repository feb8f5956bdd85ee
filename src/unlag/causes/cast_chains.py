"""Casts that change nothing.

What it is: the executed graph casts values to the type that they have, or to a wider type and back without
computing anything in it.

Why it costs: each such node reads and writes a whole activation, in the wider type twice the bytes. In front of a
matrix product or a normalization they also keep the runtime from fusing what belongs together.

How it is seen: in the graph that the runtime executes, more of them than in the standard's. Its own passes take
neighboring pairs out, but not those with a Reshape or a Transpose of the widened values in between, and none with
the passes off.

Remedy: take the casts out; what moved the widened values moves the narrow ones.

Safety: exact. Only what gives the very same values is taken out; float32 → float16 → float32 is not.

Source: onnxruntime#20346, onnxruntime!12871.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.copies import useless_casts
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.rewrites.remove_casts import remove_casts


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = useless_casts(variant), useless_casts(standard)
    casts = sum(node.op_type == "Cast" for node in variant.facts.nodes)
    count = f"{len(ours)} of {casts} executed casts change nothing"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    return Finding("found", f"{count} (standard: {len(theirs)})", tuple(node.name or node.outputs[0] for node in ours))


CAUSE = Cause(
    id="cast_chains",
    title="casts that change nothing",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="remove_casts",
            title="take out casts to a value's own type, or to a wider one and back",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: remove_casts(draft.model),
        ),
    ),
    knots={"disabled_graph_passes": "with its passes on, the runtime takes neighboring pairs out"},
)
