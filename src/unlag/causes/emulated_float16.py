"""Float16 arithmetic on a CPU that only converts float16.

What it is: the model computes in float16 on a CPU that has no float16 arithmetic.

Why it costs: such a CPU converts between float16 and float32 and calculates in float32. The runtime puts a Cast
before and after the operators that it has no float16 kernel for; weights that are made in float16 are converted
at every run, and fusions that expect a plain float pattern no longer match.

How it is seen: casts to or from float16, or operators with float16 results, in the graph that the runtime
executes, more than the standard has; and a CPU without avx512_fp16, amx_fp16 or ARM's fphp/asimdhp.

Remedy: widen constants and values to float32 and take the casts out, keeping them at the graph's borders.

Safety: close. Constants are widened without loss; intermediate values are no longer rounded to 11 bits.

Source: onnxruntime#11831, onnxruntime#25824, onnxruntime#10919, onnxconverter-common#169, openvino#18866,
ipex-llm#6473.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs
from unlag.rewrites.element_types import fact_types
from unlag.rewrites.widen_float16 import widen_float16

_HALF = "float16"


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    casts, operators = _half_nodes(variant)
    theirs = sum(len(part) for part in _half_nodes(standard))
    count = f"{len(casts)} casts to or from float16, {len(operators)} operators with float16 results"
    provider = evidence.variant.variant.options.get("provider", "cpu")
    if provider != "cpu":
        return Finding("ruled_out", f"{count}, but it runs on {provider}, not on the CPU")
    native = evidence.host.has_float16_arithmetic
    if not casts and not operators:
        return Finding("ruled_out", f"{count} among the {len(variant.facts.nodes)} executed nodes")
    if isinstance(native, Missing):
        return Finding("not_checked", f"{count}; whether this CPU has float16 arithmetic is not known: {native.reason}")
    if native:
        return Finding("ruled_out", f"{count}, and this CPU has float16 arithmetic")
    if len(casts) + len(operators) <= theirs:
        return Finding("ruled_out", f"the standard has as many: {count}, the standard {theirs} in all")
    where = tuple(node.name or node.outputs[0] for node in [*casts, *operators])
    return Finding("found", f"{count}, and this CPU has no float16 arithmetic (standard: {theirs})", where)


def _half_nodes(index: GraphIndex) -> tuple[list[Node], list[Node]]:
    """Casts to or from float16, and the other nodes that make float16."""
    types = fact_types(index.facts)
    casts = [
        n
        for n in index.facts.nodes
        if n.op_type == "Cast" and _HALF in {types.get(n.inputs[0]), types.get(n.outputs[0])}
    ]
    makers = [
        n for n in index.facts.nodes if n.op_type != "Cast" and any(types.get(name) == _HALF for name in n.outputs)
    ]
    return casts, makers


CAUSE = Cause(
    id="emulated_float16",
    title="float16 emulated on this CPU",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="widen_float16",
            title="compute in float32 and take the casts out",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=lambda draft: widen_float16(draft.model),
        ),
    ),
    knots={"disabled_graph_passes": "with its passes on, the runtime takes the casts out"},
)
