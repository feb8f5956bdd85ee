"""Weights so small that the CPU takes a slow way.

What it is: weights of the variant are subnormal numbers, 0 < |w| < 1.18e-38, where the standard's are zero or normal.

Why it costs: many CPUs, Intel's above all, multiply subnormal numbers in microcode, which takes a hundred cycles or
more instead of four, and every vector that holds one of them waits. Pruning by decay, and folding a tiny scale into
weights, make such numbers. On other CPUs they cost nothing: there the proof says "no effect".

How it is seen: the share of subnormal elements in float32 constants of the file, against the standard's.

Remedy: set them to zero. The other way is the session option that treats them as zero wherever they arise, which
helps against subnormal activations too.

Safety: exact. What is lost is 38 orders of magnitude below one.

Source: onnxruntime#7448 (2400 ms on Intel, 40 ms on AMD), onnxruntime#6865, onnxruntime#13968, onnxruntime#15630,
onnxruntime#12959, EfficientNet-PyTorch#39, pytorch#10140.
"""

from __future__ import annotations

import math

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.draft import OnnxDraft
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.flush_subnormals import flush_subnormals

OPTION = "config.session.set_denormal_as_zero"
SHARE = 1e-4
"""Of one constant's elements: a vector in a thousand waits for one of them."""


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    ours, theirs = _subnormal(variant), _subnormal(standard)
    total = sum(math.prod(c.shape) for c in variant.facts.constants.values() if c.dtype == "float32")
    count = f"{sum(ours.values()):.0f} of {total} float32 weights are subnormal (standard: {sum(theirs.values()):.0f})"
    if sum(ours.values()) <= sum(theirs.values()):
        return Finding("ruled_out", count)
    if evidence.variant.variant.options.get(OPTION) == "1":
        return Finding("ruled_out", f"{count}; {OPTION}=1 takes them as zero")
    return Finding("found", f"{count}, in {len(ours)} constants", tuple(ours))


def _subnormal(index: GraphIndex) -> dict[str, float]:
    """Subnormal elements of each constant that has a share of them worth naming."""
    shares = {name: constant.subnormal_share or 0.0 for name, constant in index.facts.constants.items()}
    return {
        name: share * math.prod(index.facts.constants[name].shape) for name, share in shares.items() if share >= SHARE
    }


def _treat_as_zero(draft: OnnxDraft) -> int:
    if draft.variant.runtime != "onnxruntime" or draft.options.get(OPTION) == "1":
        return 0
    draft.options[OPTION] = "1"
    return 1


CAUSE = Cause(
    id="subnormal_numbers",
    title="weights below the smallest normal number",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="flush_subnormals",
            title="set subnormal weights to zero",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: flush_subnormals(draft.model),
        ),
        Remedy(
            id="subnormals_as_zero",
            title="let the session treat subnormal numbers as zero",
            safety="EXACT",
            step=Step.SESSION,
            apply=_treat_as_zero,
        ),
    ),
)
