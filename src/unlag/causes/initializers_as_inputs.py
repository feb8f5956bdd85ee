"""Weights that are listed as graph inputs.

What it is: the file lists initializers as graph inputs too, so that a caller could give other values at every run.

Why it costs: the runtime must not count on such a value. It folds no constants from it, fuses no bias, scale or
activation that hangs on it, and packs the weights of matrix products at every run instead of once.

How it is seen: initializers that are graph inputs and that nodes read, more than in the standard's. Files of the IR
versions before 4 must list all of them; there the runtime takes them as constants all the same, so they don't count.

Remedy: take them off the list of inputs; those that the workload feeds stay.

Safety: exact. The values are the file's own, as before.

Source: onnxruntime#10919, onnxruntime#17389, onnxruntime#4507; onnxruntime's warning "initializer appears in graph
inputs and will not be treated as constant value".
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.unlist_initializers import FIRST_WITH_CONSTANTS, unlist_initializers


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    ours, theirs = _overridable(variant, evidence), _overridable(standard, evidence)
    listed, version = variant.facts.listed_inputs, variant.facts.ir_version
    if listed and not ours:
        why = f"which IR version {version} asks for" if _must_list(variant) else "but the workload feeds them"
        return Finding(
            "ruled_out", f"{len(listed)} initializers are listed as inputs, {why}; the standard: {len(theirs)}"
        )
    count = f"{len(ours)} of {len(variant.facts.constants)} constants are inputs that a caller may override"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    return Finding("found", f"{count} (standard: {len(theirs)}): they are not folded, fused or packed", tuple(ours))


def _must_list(index: GraphIndex) -> bool:
    return index.facts.ir_version is not None and index.facts.ir_version < FIRST_WITH_CONSTANTS


def _overridable(index: GraphIndex, evidence: Evidence) -> list[str]:
    """Listed initializers that some node reads and that the workload does not feed."""
    if _must_list(index):
        return []
    return [n for n in index.facts.listed_inputs if n in index.consumers and n not in evidence.input_shapes]


CAUSE = Cause(
    id="initializers_as_inputs",
    title="weights listed as inputs",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="unlist_initializers",
            title="take the file's own constants off the list of inputs",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: unlist_initializers(draft.model, keep=frozenset(draft.observed.input_shapes)),
        ),
    ),
    knots={"unfused_activation": "an activation whose constants may change can't be fused"},
)
