"""Results that depend on the other rows of the batch.

What it is: activations are quantized by the range of the whole tensor, and a batch has several rows: each row's
result depends on the rows beside it.

Why it costs: one row with a large value, or padding, widens the range that all rows share, and the codes of the
others get coarser by as much. The same text has another embedding in another batch, so that results differ from
those that were stored, and from a test that ran row by row. The time is the same.

How it is seen: DynamicQuantizeLinear in the file, more than in the standard's, and inputs that were run with
several rows. With one row there are no neighbors.

Remedy: constant scales, from the ranges that were seen in the workload's runs. (Or run rows one by one.)

Safety: close. Values beyond the ranges that were seen are clipped.

Source: onnxruntime#10111, fastembed#107; measured by us: 1 - cosine between the embeddings of MiniLM in dynamic INT8
and in float32 is 0.0107 for a text alone, 0.0116 in a batch of 4, 0.0130 in a batch of 32; between a text alone and in
a batch, 0.013.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.freeze_activation_scales import freeze_activation_scales

FEWEST_ROWS = 4
"""With fewer, the shared range is hardly wider than a row's own: the error of MiniLM grows by 4 % with two rows."""


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    ours, theirs = _dynamic(variant), len(_dynamic(standard))
    rows = max((shape[0] for shape in evidence.input_shapes.values() if shape), default=0)
    count = f"{len(ours)} activations are quantized by the range of the whole batch (standard: {theirs})"
    if len(ours) <= theirs:
        return Finding("ruled_out", count)
    if not rows:
        return Finding("not_checked", f"{count}; how many rows a batch has is not known")
    if rows < FEWEST_ROWS:
        return Finding("ruled_out", f"{count}; a batch of {rows} rows shares its range with few neighbors")
    reason = f"{count}, and a batch has {rows} rows"
    return Finding("found", reason, tuple(node.name or node.outputs[0] for node in ours))


def _dynamic(index: GraphIndex) -> list[Node]:
    return [node for node in index.facts.nodes if node.op_type == "DynamicQuantizeLinear"]


CAUSE = Cause(
    id="batch_dependent_scales",
    title="results that depend on the rest of the batch",
    dimension="quantization",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="freeze_activation_scales",
            title="quantize activations by the ranges that were seen",
            safety="CLOSE",
            step=Step.REQUANTIZE,
            apply=lambda draft: freeze_activation_scales(draft.model, draft.observed.ranges),
        ),
    ),
)
