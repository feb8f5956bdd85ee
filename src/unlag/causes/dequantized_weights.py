"""Weights are stored as integers and turned into floats at every run.

What it is: weights are stored as integers, but a float matrix product runs. In front of it, DequantizeLinear
(or Cast and Mul) turns the whole weight into floats, at every run.

Why it costs: the work is proportional to the weight and has nothing to do with the batch: each run reads all
codes, writes all floats and reads them again. Constant weights of a float model are packed once, at load; the
result of a node is packed at every run. Nothing of it is won back, for the product itself is a float one.

How it is seen: in the graph that the runtime executes, a constant of int8, uint8 or 4 bits reaches MatMul, Gemm or
Conv through DequantizeLinear, or through Cast, Sub and Mul. MatMulNBits, MatMulInteger and QLinear operators
compute from the codes and are not this cause; nor is an int8 table of which only looked-up rows are dequantized.

Remedy: fold the chain into a float constant. The file grows by four; the integer kernels that
``unlag fix`` tries in its quantization stage are the way to be small and fast.

Safety: exact. The constant holds the very numbers that were computed at every run.

Source: pytorch#122813, transformers#34310, onnxruntime-genai#406, bitsandbytes#490, bitsandbytes#6, FastChat#1698;
onnxruntime#20052, onnxruntime#26143 and onnxruntime#12487 for Q/DQ that stays unfused.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.rewrites.fold_dequantize import fold_dequantize
from unlag.rewrites.weight_reads import weight_reads


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    reads = weight_reads(variant)
    ours = [read for read in reads if read.is_dequantized]
    theirs = sum(read.is_dequantized for read in weight_reads(standard))
    if not ours:
        packed = sum(node.op_type == "MatMulNBits" for node in variant.facts.nodes)
        note = f"; {packed} MatMulNBits compute from the codes" if packed else ""
        return Finding(
            "ruled_out", f"0 of {len(reads)} float matrix products read weights that are dequantized at every run{note}"
        )
    if len(ours) <= theirs:
        return Finding(
            "ruled_out",
            f"the standard does the same: {theirs} weights dequantized at every run, the variant {len(ours)}",
        )
    kinds = ", ".join(sorted({read.constant.dtype for read in ours}))
    return Finding(
        "found",
        f"{len(ours)} of {len(reads)} matrix products read weights dequantized from {kinds} at every run"
        f" (standard: {theirs})",
        tuple(read.reader.name or read.reader.outputs[0] for read in ours),
    )


CAUSE = Cause(
    id="dequantized_weights",
    title="weights dequantized at every run",
    dimension="quantization",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="fold_dequantize",
            title="store the dequantized weights as float constants",
            safety="EXACT",
            step=Step.WIDEN,
            apply=lambda draft: fold_dequantize(draft.model),
        ),
    ),
    knots={
        "emulated_float16": "FP16 weights are made, then converted, at every run",
        "disabled_graph_passes": "with its passes on, the runtime computes from the codes",
    },
)
