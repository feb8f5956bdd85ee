"""Outputs that nobody asked for.

What it is: the variant gives all outputs of the standard, and others besides.

Why it costs: each run computes them, writes them to memory of their own and hands them over, needed or not. A tensor
that is an output also has to exist: the runtime can't fuse it away with the operators around it.

How it is seen: the file has the standard's outputs, by name, and more.

Remedy: drop the outputs that the standard doesn't have, and what only they need.

Safety: exact for the outputs that both have.

Source: onnxruntime#12880, optimum#869, onnxruntime#13105.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.drop_outputs import drop_outputs


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    ours = [info.name for info in variant.facts.outputs]
    theirs = [info.name for info in standard.facts.outputs]
    counts = f"{len(ours)} outputs, the standard has {len(theirs)}"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", counts)
    if not set(theirs) <= set(ours):
        return Finding("not_checked", f"{counts}, and not of the same names: which ones are extra can't be told")
    extra = tuple(name for name in ours if name not in theirs)
    return Finding("found", f"{counts}: {len(extra)} more are computed and handed over at every run", extra)


CAUSE = Cause(
    id="extra_outputs",
    title="outputs that the standard doesn't have",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="drop_outputs",
            title="drop the outputs that the standard doesn't have",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: drop_outputs(draft.model, [str(v.name) for v in draft.standard.graph.outputs]),
        ),
    ),
    knots={"unfused_activation": "an intermediate result that is an output can't be fused away"},
)
