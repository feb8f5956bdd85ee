"""Numbers that float16 can't hold.

What it is: float16 tensors of the variant are infinite, NaN or all zero where the standard's are not.

Why it costs: float16 ends at 65504 and has nothing between 0 and 6e-8. A mask of -1e9 becomes -inf, and -inf times
0 is NaN; squares and sums of a normalization, and scores that are scaled after their product, leave the range. What
follows is NaN or zero. It costs no time, only the result.

How it is seen: float16 tensors that held NaN, infinities or nothing but zeros when the workload's inputs were
run, where the standard's were finite, and that the executed graph makes in float16 too; float16 constants with
infinite elements, more than the standard has, where nothing was run. An infinity that a Softmax turns into a weight of
zero is what a mask is for. Bfloat16 has the range of float32 and is not meant.

Remedy: bring infinite constants back to the largest finite number, and compute in float32.

Safety: close. Values are no longer rounded to 11 bits.

Source: onnxruntime#11384, onnxruntime#21345, onnxruntime#29034, onnxconverter-common#323, fairseq#3575,
TensorRT#2466.
"""

from __future__ import annotations

from collections.abc import Mapping

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.measure.sketch import TensorFacts
from unlag.model.facts import Constant, GraphIndex
from unlag.observe.evidence import Evidence, Side
from unlag.observe.graphs import file_graphs
from unlag.rewrites.bound_float16 import bound_float16
from unlag.rewrites.element_types import fact_types
from unlag.rewrites.widen_float16 import widen_float16

_HALF = "float16"
_WIDE_RESULTS = frozenset({"Pow", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"})
"""Operators whose results leave the range of float16 first."""
_NORMALIZED = frozenset({"Softmax", "Attention", "MultiHeadAttention"})
_CARRIES_MASK = frozenset(
    {"Add", "Cast", "Concat", "Expand", "Identity", "Mul", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"}
)
_LARGEST_SINGLE = 3.5e38
_LONGEST_MASK = 20
"""Operators between a mask's constant and the Softmax."""


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    types = fact_types(variant.facts)
    half = [name for name, dtype in types.items() if dtype == _HALF]
    if not half:
        return Finding("ruled_out", f"0 of {len(types)} tensors are float16")
    constants, theirs = _infinite_constants(variant, _HALF), _infinite_constants(standard, None)
    suspects = _lost_tensors(evidence, None if constants else _made_by_the_runtime(evidence.variant))
    lost = [name for name in suspects if not _is_masked(name, variant, _values(evidence.variant))]
    count = (
        f"of {len(half)} float16 tensors, {len(constants)} are infinite constants (standard: {len(theirs)}),"
        f" {len(lost)} lost their values in a run where the standard kept them,"
        f" {len(suspects) - len(lost)} are infinite as masks"
    )
    was_run = not isinstance(evidence.variant.values, Missing)
    if lost or (len(constants) > len(theirs) and not was_run):
        return Finding("found", count, tuple(lost or constants))
    at_risk = sum(n.op_type in _WIDE_RESULTS and types.get(n.outputs[0]) == _HALF for n in variant.facts.nodes)
    if at_risk and not was_run:
        return Finding("not_checked", f"{count}; {at_risk} squares and sums were not run")
    return Finding("ruled_out", count)


def _infinite_constants(index: GraphIndex, dtype: str | None) -> list[str]:
    """Constants of the type, or of any, that hold an infinity or NaN."""
    return [
        name
        for name, constant in index.facts.constants.items()
        if dtype in {None, constant.dtype} and not _is_finite(constant)
    ]


def _is_finite(constant: Constant) -> bool:
    """Whether no element is infinite or NaN; facts hold an infinity as a number beyond float32."""
    sizes = constant.values if constant.values is not None else (constant.abs_max or 0.0,)
    return all(abs(size) <= _LARGEST_SINGLE for size in sizes)


def _lost_tensors(evidence: Evidence, made: set[str] | None) -> list[str]:
    """Float16 tensors that are NaN, infinite or all zero, whose partner in the standard is not; of ``made``, if any.

    An infinite constant stays infinite in whatever type it is computed with.
    """
    ours, theirs = _values(evidence.variant), _values(evidence.standard)
    partner = {pair.variant: pair.standard for pair in evidence.pairs}
    healthy = bool(theirs) and all(not facts.nonfinite for facts in theirs.values())
    lost = []
    for name, facts in ours.items():
        if facts.dtype != _HALF or (made is not None and name not in made):
            continue
        other = theirs.get(partner.get(name, name))
        overflowed = facts.nonfinite > 0 and (healthy if other is None else not other.nonfinite)
        if overflowed or (facts.rms == 0 and not facts.nonfinite and other is not None and other.rms > 0):
            lost.append(name)
    return lost


def _made_by_the_runtime(side: Side) -> set[str] | None:
    """Tensors of the executed graph: between operators that it has in float32 only, a runtime keeps no float16."""
    if isinstance(side.executed, Missing):
        return None
    return {name for node in side.executed.nodes for name in node.outputs}


def _values(side: Side) -> dict[str, TensorFacts]:
    return {} if isinstance(side.values, Missing) else side.values.tensors


def _is_masked(name: str, index: GraphIndex, values: Mapping[str, TensorFacts], depth: int = 0) -> bool:
    """Whether all infinities of a tensor end in Softmax operators whose weights are finite: hidden positions."""
    readers = index.consumers.get(name, [])
    if not readers or depth > _LONGEST_MASK:
        return False
    for node in readers:
        results = [values[out] for out in node.outputs if out in values]
        if node.op_type in _NORMALIZED:
            if not results or any(facts.nonfinite for facts in results):
                return False
        elif node.op_type not in _CARRIES_MASK or not all(
            _is_masked(out, index, values, depth + 1) for out in node.outputs if out
        ):
            return False
    return True


CAUSE = Cause(
    id="half_precision_range",
    title="numbers beyond the range of float16",
    dimension="hardware",
    affects=frozenset({"accuracy"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="widen_half_precision",
            title="compute in float32 what leaves the range of float16",
            safety="CLOSE",
            step=Step.WIDEN,
            apply=lambda draft: bound_float16(draft.model) + widen_float16(draft.model),
        ),
    ),
)
