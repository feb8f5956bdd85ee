"""Where NaN or infinity comes into a model."""

from __future__ import annotations

from collections.abc import Mapping

from unlag.errors import Missing
from unlag.measure.bench import Bench
from unlag.measure.sketch import TensorFacts
from unlag.model.facts import GraphFacts, GraphIndex
from unlag.observe.values import sketch_tensors, values_of
from unlag.runtimes.contract import find_runtime


def where_nonfinite(bench: Bench) -> str:
    """A sentence on the first tensor with NaN or infinity that only the variant has, or the standard; or nothing."""
    tensors = []
    for variant in (bench.case.standard, bench.case.variant):
        values = values_of(sketch_tensors(bench, variant))
        tensors.append({} if isinstance(values, Missing) else values.tensors)
    healthy = not any(facts.nonfinite for facts in tensors[0].values())
    who, variant, held = (
        ("variant", bench.case.variant, tensors[1]) if healthy else ("standard", bench.case.standard, tensors[0])
    )
    graph = find_runtime(variant.runtime).read_graph(variant)
    first = first_nonfinite(held)
    if first is None or isinstance(graph, Missing):
        return ""
    return f"the first in the {who} is {described(first, held[first], graph)}"


def first_nonfinite(tensors: Mapping[str, TensorFacts]) -> str | None:
    """The first tensor, in the order of computing, that holds NaN or infinity."""
    return next((name for name, facts in tensors.items() if facts.nonfinite), None)


def described(tensor: str, facts: TensorFacts, graph: GraphFacts) -> str:
    """The tensor with the operator that made it, its type and the largest number that is left in it."""
    maker = GraphIndex(graph).producer(tensor)
    made = f", made by {maker.op_type}" if maker is not None else ""
    largest = max(abs(facts.low), abs(facts.high))
    return f"{tensor!r}{made} in {facts.dtype}: {facts.nonfinite} elements, the others up to {largest:.3g}"
