"""Operators with a slow kernel that could be spelled with fast ones.

What it is: a matrix product is written as Einsum, a root or a quotient as Pow, a sigmoid as exp, addition and
division, while the standard has the operator that runtimes tune.

Why it costs: general operators have general kernels. On ONNX Runtime's CPU an Einsum takes twice the time of the
MatMul that it is, for it packs nothing in advance and may transpose; Pow by −1, 0.5, 1.5 or 4 calls the general
power for each element, 5 to 15 times the time of Sqrt, Reciprocal or Mul; a sigmoid written out reads and writes
its tensor four times.

How it is seen: in the executed graph, operators for which there is a faster spelling, more than in the standard's.
Where there is a profile, they take one percent of the time at least.

Remedy: spell them with the fast operators.

Safety: close. The same numbers up to rounding.

Source: our measurements on onnxruntime 1.32 with two threads; executorch!12360 for a kernel that lacked vectors.
"""

from __future__ import annotations

from collections import Counter

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.errors import Missing
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import executed_graphs, file_graphs
from unlag.observe.passes import has_fewer_passes
from unlag.rewrites.respell_operators import respell_operators, slow_operators

WORTH_IT = 0.01
"""Of the profiled time."""

_PARTS = {"Div": ("Neg", "Exp", "Add", "Div"), "Reciprocal": ("Neg", "Exp", "Add", "Reciprocal")}
"""Operators of a sigmoid that is written out, by its last one."""


def _detect(evidence: Evidence) -> Finding:
    standard, variant = executed_graphs(evidence)
    ours, theirs = slow_operators(variant), slow_operators(standard)
    count = f"{len(ours)} of {len(variant.facts.nodes)} executed operators have a faster spelling"
    if len(ours) <= len(theirs):
        return Finding("ruled_out", f"{count}, in the standard {len(theirs)}")
    in_standard, in_variant = (len(slow_operators(index)) for index in file_graphs(evidence))
    if has_fewer_passes(evidence) and in_variant <= in_standard:
        return Finding("ruled_out", f"{count}, and {in_standard} in the standard's file; here the passes are off")
    share = _share(evidence, {part for node in ours for part in _PARTS.get(node.op_type, (node.op_type,))})
    if share is not None and share < WORTH_IT:
        return Finding("ruled_out", f"{count}, but their kinds take only {share:.1%} of the time")
    kinds = ", ".join(f"{n} {_spelled(op_type)}" for op_type, n in Counter(n.op_type for n in ours).most_common())
    where = tuple(node.name or node.outputs[0] for node in ours)
    return Finding("found", f"{count}: {kinds} (standard: {len(theirs)})", where)


def _spelled(op_type: str) -> str:
    return "sigmoids written out" if op_type in _PARTS else op_type


def _share(evidence: Evidence, op_types: set[str]) -> float | None:
    """Share of the profiled time that operators of these kinds take, at most."""
    profile = evidence.variant.profile
    if isinstance(profile, Missing):
        return None
    total = sum(operator.time_ms for operator in profile.operators)
    taken = sum(operator.time_ms for operator in profile.operators if operator.op_type in op_types)
    return taken / total if total else None


CAUSE = Cause(
    id="slow_operator",
    title="operators with a slow kernel",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph", "executed", "standard_executed"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="respell_operators",
            title="spell slow operators with fast ones",
            safety="CLOSE",
            step=Step.CLEAN,
            apply=lambda draft: respell_operators(draft.model),
        ),
    ),
)
