"""Convolutions in a blocked layout that costs more than it saves.

What it is: the runtime runs convolutions on channels in blocks of 8 or 16 and copies tensors into that layout and
out of it again. In the variant these copies, and the blocked kernels, take more time than plain convolutions do.

Why it costs: each operator that has no blocked kernel makes the runtime copy its input out of the layout and its
output back into it. Around large filters with many channels that is little; around 1x1 filters with few channels, or
depthwise ones, a copy moves as much memory as the convolution itself.

How it is seen: ReorderInput and ReorderOutput in the executed graph, more than in the standard's; their share
of the profiled time; and convolutions that take longer with them than the standard's take.

Remedy: open the session at the level below the one that changes layouts (optimization=extended). Where the file
itself holds blocked convolutions, nothing is done.

Safety: close. The same products, summed in another order.

Source: onnxruntime#15743, onnxruntime#10538; measured by us: six depthwise 1x1 convolutions of 8 channels on 128x128
take 0.47 ms blocked and 0.10 ms plain, with 16 dense channels 0.63 and 0.39 ms.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.model.facts import GraphFacts, Node
from unlag.observe.evidence import Evidence, Side
from unlag.observe.graphs import executed_graphs
from unlag.observe.passes import LEVELS, OPTION

REORDERS = frozenset({"ReorderInput", "ReorderOutput"})
CONVOLUTIONS = frozenset({"Conv", "FusedConv"})
PLAIN = "extended"
TIME_SHARE = 0.05
MARGIN = 1.1
"""Profiles of single operators repeat within 5 % or so on a quiet machine."""


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = _reorders(variant.facts), _reorders(standard.facts)
    count = f"{len(ours)} copies into or out of the blocked layout (standard: {len(theirs)})"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", count)
    graph = evidence.variant.graph
    in_file = 0 if isinstance(graph, Missing) else len(_reorders(graph))
    if in_file:
        return Finding("ruled_out", f"{count}; {in_file} are in the file, where no session option reaches them")
    copied_ms, blocked_ms = _total_ms(evidence.variant, REORDERS), _total_ms(evidence.variant, CONVOLUTIONS)
    plain_ms = _total_ms(evidence.standard, CONVOLUTIONS | REORDERS)
    share = copied_ms / max(_total_ms(evidence.variant, None), 1e-9)
    times = (
        f"{count} take {copied_ms:.3f} ms, {share:.0%} of the time; with them, convolutions take"
        f" {copied_ms + blocked_ms:.3f} ms, the standard's {plain_ms:.3f} ms"
    )
    if not plain_ms:
        return Finding("not_checked", f"{times}: the standard has no profiled convolution to compare with")
    if share < TIME_SHARE or copied_ms + blocked_ms <= MARGIN * plain_ms:
        return Finding("ruled_out", times)
    return Finding("found", times, tuple(node.name or node.outputs[0] for node in ours))


def _reorders(facts: GraphFacts) -> list[Node]:
    return [node for node in facts.nodes if node.op_type in REORDERS]


def _total_ms(side: Side, op_types: frozenset[str] | None) -> float:
    """Summed time of the operators of these kinds, or of all."""
    if isinstance(side.profile, Missing):
        return 0.0
    return sum(o.time_ms for o in side.profile.operators if op_types is None or o.op_type in op_types)


def _keep_layout(draft: OnnxDraft) -> int:
    level = draft.options.get(OPTION, LEVELS[-1])
    if draft.variant.runtime != "onnxruntime" or level not in LEVELS or LEVELS.index(level) <= LEVELS.index(PLAIN):
        return 0
    draft.options[OPTION] = PLAIN
    return 1


CAUSE = Cause(
    id="blocked_layout",
    title="convolutions copied into a blocked layout",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed", "profile"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="unblocked_layout",
            title="keep convolutions in the layout of the file",
            safety="CLOSE",
            step=Step.SESSION,
            apply=_keep_layout,
        ),
    ),
)
