"""An activation function that is not the standard's.

What it is: in the place of the standard's activation there is another function: ReLU for GELU, its approximation by
tanh or by a sigmoid for the exact form, HardSwish for SiLU.

Why it costs: the network was trained with the other one. Functions that look alike in a plot differ by a percent of the
activation in every layer, and a ReLU throws away what GELU lets through.

How it is seen: both files have equally many activations, told by their values on samples however they are spelled,
and in the same place they are other functions.

Remedy: put the standard's function in its place.

Safety: close. It restores the standard's function, so outputs change on purpose.

Source: executorch!12360 and onnxruntime!27418 for the functions that are exchanged; onnxruntime's option
enable_gelu_approximation.
"""

from __future__ import annotations

from collections import Counter

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.activation_units import differing_units, restore_activation


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    off, ours, theirs = differing_units(variant.facts, standard.facts)
    if ours != theirs:
        return Finding("ruled_out", f"{ours} activations were told, in the standard {theirs}: they can't be matched")
    if not off:
        return Finding("ruled_out", f"0 of {ours} activations are other functions than the standard's {theirs}")
    pairs = Counter((replaced.unit.function, replaced.function) for replaced in off)
    said = ", ".join(f"{count} {mine} (standard: {other})" for (mine, other), count in pairs.most_common())
    return Finding("found", f"{len(off)} of {ours} activations differ: {said}", tuple(r.unit.node for r in off))


CAUSE = Cause(
    id="different_activation",
    title="another activation function",
    dimension="graph",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="restore_activation",
            title="put the standard's activation function in its place",
            safety="CLOSE",
            step=Step.RESTORE,
            apply=lambda draft: restore_activation(draft.model, draft.standard),
        ),
    ),
)
