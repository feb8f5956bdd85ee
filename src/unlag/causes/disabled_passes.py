"""Single optimizer passes switched off.

What it is: passes of the runtime that the standard has are switched off by name, or a session configuration entry
keeps the runtime from handling QuantizeLinear and DequantizeLinear.

Why it costs: what a pass would fuse, fold or take out is executed. A model whose layers are quantized by pairs of
QuantizeLinear and DequantizeLinear computes in floats and converts around each operator if the pass that makes
integer operators of them is off.

How it is seen: passes that the variant's option ``disable`` names and the standard's does not, or an entry that turns
passes off; and more nodes executed than the standard's, or others of the same kind.

Remedy: switch them on again, as the standard has them. Passes that other remedies switch off stay off.

Safety: close. The passes keep the function; sums are taken in another order.

Source: onnxruntime#10538, triton-inference-server!1139, onnxruntime's page on graph optimizations; measured by us: a
small ResNet takes 10.2 ms of one thread, and 14.0 ms without its blocked layout and the fusions of convolutions with
their activations; MiniLM loses 1 % without its fusions.
"""

from __future__ import annotations

from collections.abc import Mapping

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.observe.evidence import Evidence, Side
from unlag.observe.session_options import DISABLE, PASSES, adopt, differing, passes_off, said

_OFF = {
    "config.session.disable_quant_qdq": "1",
    "config.session.disable_qdq_constant_folding": "1",
    "config.session.disable_double_qdq_remover": "1",
    "config.session.enable_quant_qdq_cleanup": "0",
    "config.optimization.enable_cast_chain_elimination": "0",
}
"""The value of each entry that turns passes off."""


def _detect(evidence: Evidence) -> Finding:
    ours, theirs = (side.variant.options for side in (evidence.variant, evidence.standard))
    names = sorted(passes_off(ours) - passes_off(theirs))
    entries = [name for name in differing(ours, theirs, PASSES - {DISABLE}) if _is_off(ours, name)]
    counts = f"{_executed(evidence.variant)} nodes are executed, the standard executes {_executed(evidence.standard)}"
    if not names and not entries:
        shared = len(passes_off(ours) & passes_off(theirs))
        return Finding("ruled_out", f"0 passes are off that the standard has, {shared} are off in both; {counts}")
    if _runs_the_same(evidence):
        return Finding("ruled_out", f"{len(names) + len(entries)} passes are off without a difference; {counts}")
    parts = [f"disable={'+'.join(names)}"] if names else []
    parts += [said(ours, theirs, entries)] if entries else []
    return Finding("found", f"{', '.join(parts)}; {counts}", (*names, *entries))


def _is_off(options: Mapping[str, str], name: str) -> bool:
    if name not in options:
        return False
    return options[name] == _OFF.get(name, options[name])


def _executed(side: Side) -> str:
    return "an unknown number of" if isinstance(side.executed, Missing) else str(len(side.executed.nodes))


def _runs_the_same(evidence: Evidence) -> bool:
    """Whether both sides execute the same operators, in the same numbers: no pass is missed."""
    ours, theirs = evidence.variant.executed, evidence.standard.executed
    if isinstance(ours, Missing) or isinstance(theirs, Missing):
        return False
    return sorted((n.domain, n.op_type) for n in ours.nodes) == sorted((n.domain, n.op_type) for n in theirs.nodes)


def _enable(draft: OnnxDraft) -> int:
    """Switch on what the variant came with switched off; what other remedies switched off stays off."""
    given = passes_off(draft.variant.options) - passes_off(draft.standard_options)
    now = passes_off(draft.options)
    kept = sorted(now - given)
    if kept != sorted(now):
        draft.options.pop(DISABLE)
        if kept:
            draft.options[DISABLE] = "+".join(kept)
    return len(now & given) + adopt(draft, PASSES - {DISABLE})


CAUSE = Cause(
    id="disabled_passes",
    title="single optimizer passes switched off",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="enable_passes",
            title="switch on the passes that the standard has",
            safety="CLOSE",
            step=Step.SESSION,
            apply=_enable,
        ),
    ),
    knots={"disabled_graph_passes": "at a lower level there are fewer passes to switch on"},
)
