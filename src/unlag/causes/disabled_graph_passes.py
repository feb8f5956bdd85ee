"""A session with its graph optimizations off.

What it is: the session is opened with graph optimizations off, or at a lower level than the standard's.

Why it costs: constants are computed at every run, GELU runs as five elementwise nodes instead of one, scales, biases
and activations stay nodes of their own, and casts and transposes that cancel are executed.

How it is seen: the option ``optimization`` of the spec is lower than the standard's
(off < basic < extended < layout < all; all where it is absent).

Remedy: set the option to the standard's level.

Safety: close. The passes keep the function; sums are taken in another order.

Source: triton-inference-server!1139; onnxruntime's page on graph optimizations.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.observe.evidence import Evidence, Side
from unlag.observe.passes import LEVELS, OPTION, has_fewer_passes, level_of


def _detect(evidence: Evidence) -> Finding:
    ours, theirs = level_of(evidence.variant.variant), level_of(evidence.standard.variant)
    if evidence.variant.variant.runtime != "onnxruntime":
        return Finding(
            "not_checked",
            f"graph passes can be chosen in onnxruntime, 0 levels are known for {evidence.variant.variant.runtime}",
        )
    if ours not in LEVELS or theirs not in LEVELS:
        return Finding("not_checked", f"{ours!r} or {theirs!r} is none of the {len(LEVELS)} levels {', '.join(LEVELS)}")
    counts = f"{_executed(evidence.variant)} nodes are executed, the standard executes {_executed(evidence.standard)}"
    if not has_fewer_passes(evidence):
        return Finding("ruled_out", f"{OPTION}={ours}, the standard has {theirs}: 0 levels lower; {counts}")
    return Finding("found", f"{OPTION}={ours}, the standard has {theirs}; {counts}")


def _executed(side: Side) -> str:
    return "an unknown number of" if isinstance(side.executed, Missing) else str(len(side.executed.nodes))


def _enable(draft: OnnxDraft) -> int:
    """Open the draft with the standard's level."""
    wanted = draft.standard_options.get(OPTION)
    if draft.options.get(OPTION, LEVELS[-1]) == (wanted or LEVELS[-1]):
        return 0
    draft.options.pop(OPTION, None)
    if wanted is not None:
        draft.options[OPTION] = wanted
    return 1


CAUSE = Cause(
    id="disabled_graph_passes",
    title="graph optimizations switched off",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="enable_graph_passes",
            title="open the session with the standard's graph optimizations",
            safety="CLOSE",
            step=Step.SESSION,
            apply=_enable,
        ),
    ),
)
