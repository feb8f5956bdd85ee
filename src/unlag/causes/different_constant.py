"""A number of the function that is not the standard's.

What it is: an operator has another constant than its counterpart in the standard: the epsilon of a normalization, the
slope of an activation, a clipping bound, the number that a mask adds, an approximation where the exact form was.

Why it costs: it costs accuracy, not time: the network computes another function than it was trained for. It gets in
when a fusion takes its operator's default instead of the number in the graph, or when a value is cut to a type's range.

How it is seen: attributes and one-element constants of operators that both files have equally many of are compared in
the graphs' order. Differences by rounding to half precision do not count, nor do mask values that are both far
beyond what a Softmax can see.

Remedy: take the standard's numbers.

Safety: close. It restores the standard's function, so outputs change on purpose.

Source: onnxruntime#29727, onnxruntime#4293, openvino#27795, tt-metal#33304.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.restore_constants import Difference, compare_constants, restore_constants


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    comparison = compare_constants(variant.facts, standard.facts)
    off = comparison.differences
    count = f"{len(off)} of {comparison.compared} constants of matching operators"
    if not off:
        return Finding("ruled_out", f"{count} differ from the standard's")
    first = off[0]
    reason = f"{count} differ: {_place(first)} is {_number(first.ours)}, in the standard {_number(first.theirs)}"
    return Finding("found", reason, tuple(d.node.name or d.node.outputs[0] for d in off))


def _place(difference: Difference) -> str:
    where = f"input {difference.place}" if isinstance(difference.place, int) else difference.place
    return f"{where} of {difference.node.op_type}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


CAUSE = Cause(
    id="different_constant",
    title="constants that are not the standard's",
    dimension="graph",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="restore_constants",
            title="give the standard's constants back to its operators",
            safety="CLOSE",
            step=Step.RESTORE,
            apply=lambda draft: restore_constants(draft.model, draft.standard),
        ),
    ),
)
