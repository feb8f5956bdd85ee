"""Activations copied without being changed.

What it is: the executed graph copies activations without changing them: a Transpose and its inverse, or an Identity.

Why it costs: each such node reads and writes a whole activation. A Transpose also reads it out of order, so that a
pair costs more than two plain copies; exporters and layout converters leave them around the operators they wrap.

How it is seen: in the graph that the runtime executes (its own passes take many of them out), more of them than in
the standard's. Casts that change nothing are a cause of their own.

Remedy: take out pairs that cancel, merge the ones that only combine.

Safety: exact. Only what gives the very same values is taken out.

Source: pytorch#23871, pytorch#70902, pytorch!117845, TensorRT#993, TensorRT#1423.
"""

from __future__ import annotations

from collections import Counter

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.copies import redundant_copies
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.rewrites.remove_copies import remove_copies


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = redundant_copies(variant), redundant_copies(standard)
    if not ours:
        return Finding("ruled_out", f"0 of {len(variant.facts.nodes)} executed nodes copy without changing anything")
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"the standard has as many: {len(theirs)} useless copies, the variant {len(ours)}")
    counts = Counter(node.op_type for node in ours)
    words = {"Transpose": "inverse Transpose pairs", "Identity": "Identity nodes"}
    reason = ", ".join(f"{count} {words[op_type]}" for op_type, count in counts.most_common())
    return Finding("found", f"{reason} (standard: {len(theirs)})", tuple(node.name or node.outputs[0] for node in ours))


CAUSE = Cause(
    id="redundant_copies",
    title="copies that change nothing",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="remove_copies",
            title="take out transposes and copies that cancel",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: remove_copies(draft.model),
        ),
    ),
    knots={"disabled_graph_passes": "with its passes on, the runtime takes such pairs out"},
)
