"""Where in its file each executed operator belongs, whatever the runtime has renamed. Pure.

Runtimes give tensors and nodes new names when they change layouts (ONNX Runtime's ``first.relu_nchwc``, made of the
tensor ``first.relu``) or fuse, but one executed graph keeps its order: what an operator reads was made before it, and
what reads its results comes behind it.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unlag.model.facts import GraphFacts, Node
from unlag.observe.borders import places_of
from unlag.runtimes.contract import Profile

_ADDED = (re.compile(r"_token_\d+$"), re.compile(r"_nchwc$"), re.compile(r"_bn$"), re.compile(r"^fused "))
"""What ONNX Runtime puts around names: where one is taken, in its blocked layout, for a normalization there, and where
it fuses."""


class Span(NamedTuple):
    """The first and the last place in the file's order where something may belong; equal where that is known."""

    first: int
    last: int


def operator_spans(profile: Profile, executed: GraphFacts, graph: GraphFacts) -> list[Span]:
    """Where each profiled operator belongs in the file; anywhere, where no executed node can be it."""
    anywhere = Span(0, max(0, len(graph.nodes) - 1))
    named: dict[str, deque[Span]] = {}
    unnamed: dict[str, deque[Span]] = {}
    for node, span in zip(executed.nodes, _node_spans(executed, graph), strict=True):
        (named.setdefault(node.name, deque()) if node.name else unnamed.setdefault(node.op_type, deque())).append(span)
    strangers = Counter(operator.op_type for operator in profile.operators if operator.name not in named)
    # the runtime names nodes without a name by their kind and a number, and runs them in the graph's order
    in_order = {kind: unnamed[kind] for kind, count in strangers.items() if count == len(unnamed.get(kind, ()))}
    spans = []
    for operator in profile.operators:
        waiting = named.get(operator.name) or in_order.get(operator.op_type)
        if not waiting:
            spans.append(anywhere)
        else:
            spans.append(waiting.popleft() if len(waiting) > 1 else waiting[0])
    return spans


def _node_spans(executed: GraphFacts, graph: GraphFacts) -> list[Span]:
    """The span of every executed node: by its outputs, else by its name where its neighbors allow it, else by them."""
    places, names = places_of(graph), _places_by_name(graph)
    end = max(0, len(graph.nodes) - 1)
    sure = [_by_outputs(node, places) for node in executed.nodes]
    bounds = _between_neighbors(executed, sure, end)
    told = [
        _by_name(node.name, names, span) if place is None else place
        for node, place, span in zip(executed.nodes, sure, bounds, strict=True)
    ]
    return _between_neighbors(executed, told, end)


def _by_outputs(node: Node, places: Mapping[str, int]) -> int | None:
    return min((places[name] for name in node.outputs if name in places), default=None)


def _places_by_name(graph: GraphFacts) -> dict[str, int]:
    """Places by the names of tensors and of nodes; a node's name that comes twice tells nothing."""
    counts = Counter(node.name for node in graph.nodes)
    by_node = {node.name: place for place, node in enumerate(graph.nodes) if node.name and counts[node.name] == 1}
    return by_node | places_of(graph)


def _by_name(name: str, places: Mapping[str, int], span: Span) -> int | None:
    """The place that the name tells, as it is or without what the runtime put around it, if it is within the span."""
    for added in (None, *_ADDED):
        name = added.sub("", name) if added else name
        place = places.get(name)
        if place is not None and span.first <= place <= span.last:
            return place
    return None


def _between_neighbors(executed: GraphFacts, known: Sequence[int | None], end: int) -> list[Span]:
    """Not before what makes its inputs, not behind what reads its outputs; a body's node is where its holder is.

    What is constant belongs to what reads it.
    """
    nodes = executed.nodes
    firsts, lasts = _forward(nodes, known, executed.constants), _backward(nodes, known, end)
    spans: list[Span] = []
    holders: list[int] = []
    for index, (node, place) in enumerate(zip(nodes, known, strict=True)):
        holders[node.depth :] = [index]
        if place is not None:
            spans.append(Span(place, place))
        elif node.depth and len(holders) > node.depth:
            spans.append(spans[holders[node.depth - 1]])
        else:
            first, last = firsts[index], lasts[index]
            spans.append(Span(*sorted((last if first is None else first, last))))
    return spans


def _forward(nodes: Sequence[Node], known: Sequence[int | None], constants: Iterable[str]) -> list[int | None]:
    """The latest place that a node's inputs are made at, the start for graph inputs; nothing for what is constant."""
    fixed = set(constants)
    of_tensor: dict[str, int] = {}
    found: list[int | None] = []
    for node, place in zip(nodes, known, strict=True):
        first = place
        if first is None:
            first = max((of_tensor.get(name, 0) for name in node.inputs if name and name not in fixed), default=None)
        if first is None:
            fixed.update(node.outputs)
        else:
            of_tensor |= dict.fromkeys(node.outputs, first)
        found.append(first)
    return found


def _backward(nodes: Sequence[Node], known: Sequence[int | None], end: int) -> list[int]:
    """The earliest place that a node's outputs are read at; the end where nothing reads them."""
    of_tensor: dict[str, int] = {}
    found: list[int] = []
    for node, place in zip(reversed(nodes), reversed(known), strict=True):
        last = min((of_tensor[name] for name in node.outputs if name in of_tensor), default=end)
        last = last if place is None else place
        for name in filter(None, node.inputs):
            of_tensor[name] = min(of_tensor.get(name, end), last)
        found.append(last)
    return found[::-1]
