"""Batch normalization that runs behind a convolution instead of in its weights.

What it is: BatchNormalization, or its scale and shift as operators of their own, runs behind a convolution or Gemm
whose constant weights could hold it.

Why it costs: each such operator reads and writes the whole activation to do what the product in front of it could do
for nothing. It also stands between the convolution and the activation, so that these are not fused.

How it is seen: in the executed graph, operators that only scale and shift channels behind a product with constant
weights that nobody else reads, more than in the standard's. Runtimes fold the usual forms; ONNX Runtime does not
fold a division or a subtraction per channel, as in (x − mean) · scale + shift, nor BatchNormalization behind a Gemm.

Remedy: fold them into weights and bias.

Safety: close. The same function; products are rounded in another order.

Source: onnxruntime#10919, onnxruntime#4507, docling#339, TensorRT#1699 for constants that are not folded.
"""

from __future__ import annotations

from collections import Counter

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.observe.passes import has_fewer_passes
from unlag.rewrites.fold_batch_norm import WEIGHTED, fold_batch_norm, unfolded_scalings


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = unfolded_scalings(variant), unfolded_scalings(standard)
    products = sum(node.op_type in WEIGHTED for node in variant.facts.nodes)
    count = f"{len(ours)} operators scale or shift channels behind {products} convolutions and Gemms"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    in_standard, in_variant = (len(unfolded_scalings(index)) for index in file_graphs(evidence))
    if has_fewer_passes(evidence) and in_variant <= in_standard:
        return Finding("ruled_out", f"{count}, and {in_standard} in the standard's file; here the passes are off")
    kinds = ", ".join(f"{n} {op_type}" for op_type, n in Counter(node.op_type for node in ours).most_common())
    where = tuple(node.name or node.outputs[0] for node in ours)
    return Finding("found", f"{count}: {kinds} (standard: {len(theirs)})", where)


CAUSE = Cause(
    id="unfolded_batch_norm",
    title="batch normalization not folded into weights",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="fold_batch_norm",
            title="fold scales and shifts per channel into the weights in front of them",
            safety="CLOSE",
            step=Step.FUSE,
            apply=lambda draft: fold_batch_norm(draft.model),
        ),
    ),
)
