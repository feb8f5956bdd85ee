"""Shapes that are computed at every run.

What it is: the variant takes inputs of any size, and computes shapes, positions or masks from their sizes at every
run, more than the standard does.

Why it costs: each step of such arithmetic is an operator of its own that takes some microseconds for a few numbers, and
what is built from its result (position numbers, masks of full size, padding) can't be a constant of the session. The
runtime can't fuse over it either: padding whose width is computed stays a copy in front of each convolution.

How it is seen: inputs have symbolic dimensions, and in the executed graph more nodes than in the standard's
depend on nothing but constants and the sizes of tensors. With fixed sizes, the runtime computes these at load.

Remedy: fix the inputs' dimensions to those that were measured. The model then takes inputs of this one shape
only: export one file for each shape that is used, or pad to it.

Safety: exact at this shape; other shapes are refused.

Source: onnxruntime#14550, onnxruntime#6978, docling#339, openvino#12496, openvino#15831; measured by us: a small
ResNet takes 10.0 ms of one thread, 11.2 ms with padding computed from sizes, and 10.0 ms with fixed dimensions. (Fixed
shapes let the runtime fuse residuals and normalizations of MiniLM, which makes it slower here: see
slow_residual_fusion.)
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.rewrites.fix_dimensions import fix_dimensions

FEWEST_NODES = 4
"""One position table that is cut to the sequence's length takes two or three."""
TIME_SHARE = 0.01


def _detect(evidence: Evidence) -> Finding:
    inputs = file_graphs(evidence)[1].facts.inputs
    symbolic = [i.name for i in inputs if i.shape is not None and not all(isinstance(d, int) for d in i.shape)]
    standard, variant = executed_graphs(evidence)
    ours, theirs = _from_sizes(variant), len(_from_sizes(standard))
    count = (
        f"{len(ours)} of {len(variant.facts.nodes)} executed nodes depend on sizes only (standard: {theirs});"
        f" {len(symbolic)} of {len(inputs)} inputs have symbolic dimensions"
    )
    if not symbolic or len(ours) - theirs < FEWEST_NODES:
        return Finding("ruled_out", count)
    share = _time_share(evidence, {node.name for node in ours})
    if share is not None and share < TIME_SHARE:
        return Finding("ruled_out", f"{count}; they take {share:.1%} of the time")
    return Finding("found", count, tuple(node.name or node.outputs[0] for node in ours))


def _from_sizes(index: GraphIndex) -> list[Node]:
    """Nodes that would be constants if all sizes were known."""
    known: set[str] = set()
    found = []
    for node in index.facts.nodes:
        given = [name for name in node.inputs if name and name not in index.facts.constants]
        if node.op_type in {"Shape", "Size"} or (given and known.issuperset(given)):
            known.update(node.outputs)
            found.append(node)
    return found


def _time_share(evidence: Evidence, names: set[str]) -> float | None:
    """Share of the profiled time that these operators take; nothing without a profile."""
    profile = evidence.variant.profile
    if isinstance(profile, Missing):
        return None
    total = sum(operator.time_ms for operator in profile.operators)
    return sum(operator.time_ms for operator in profile.operators if operator.name in names) / total if total else None


CAUSE = Cause(
    id="dynamic_shapes",
    title="shapes computed at every run",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="fix_dimensions",
            title="fix the inputs' dimensions to the measured ones",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: fix_dimensions(draft.model, draft.observed.input_shapes),
            fixes_shape=True,
        ),
    ),
    knots={
        "disabled_graph_passes": "with its passes off, the runtime folds no constants even for fixed shapes",
        "unfused_residual_norm": "with fixed shapes, the runtime fuses residuals and normalizations by itself",
        "slow_residual_fusion": "only with fixed shapes does the runtime fuse residuals and normalizations",
    },
)
