"""Borders inside a network: tensors that everything computed so far flows through. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import msgspec

from unlag.model.facts import GraphFacts, Node

WEIGHTY_BYTES = 1024
"""A constant of this size is a weight; smaller ones are scales, axes and shapes."""
SHAPES = frozenset({"Shape", "Size"})
"""What they give has nothing of their input's values."""


@dataclass(frozen=True)
class Border:
    """A tensor, and the place of the node that makes it in the file's order."""

    tensor: str
    place: int


def places_of(facts: GraphFacts) -> dict[str, int]:
    """The place of the node that makes each tensor, in the file's order."""
    return {name: place for place, node in enumerate(facts.nodes) for name in node.outputs if name}


def in_order(facts: GraphFacts) -> GraphFacts:
    """The same graph with every node behind what it reads, in its body too, and else in the file's order.

    ONNX Runtime's quantizer sorts nodes by their own inputs: an If whose body reads a tensor may come before its maker.
    """
    parts = _with_bodies(facts.nodes)
    makers = {name: index for index, part in enumerate(parts) for name in part[0].outputs if name}
    needs = [{makers[n] for node in part for n in node.inputs if n in makers} - {i} for i, part in enumerate(parts)]
    if all(other < index for index, others in enumerate(needs) for other in others):
        return facts
    readers: dict[int, list[int]] = {}
    for index, others in enumerate(needs):
        for other in others:
            readers.setdefault(other, []).append(index)
    ready = [index for index, others in enumerate(needs) if not others]
    done: list[int] = []
    while ready:
        done.append(heapq.heappop(ready))
        for reader in readers.get(done[-1], ()):
            needs[reader].discard(done[-1])
            if not needs[reader]:
                heapq.heappush(ready, reader)
    if len(done) < len(parts):  # a circle: no order is better than the file's
        return facts
    return msgspec.structs.replace(facts, nodes=tuple(node for index in done for node in parts[index]))


def _with_bodies(nodes: tuple[Node, ...]) -> list[list[Node]]:
    """Nodes of the main graph, each with those of its bodies."""
    parts: list[list[Node]] = []
    for node in nodes:
        if node.depth and parts:
            parts[-1].append(node)
        else:
            parts.append([node])
    return parts


def find_borders(facts: GraphFacts) -> tuple[Border, ...]:
    """Tensors of the main graph that alone carry what was computed with weights, in order; graph outputs too.

    What depends on no weight (masks, shapes, positions) may pass by: it is cheap to compute again. A graph that keeps
    several tensors alive all the time (a recurrent state beside the input, several outputs) has few borders.
    """
    deep = _computed_with_weights(facts)
    last_use: dict[str, int] = {}
    for place, node in enumerate(facts.nodes):
        for name in node.inputs:
            last_use[name] = place
    ends = {info.name for info in facts.outputs}
    borders: list[Border] = []
    alive: set[str] = set()
    for place, node in enumerate(facts.nodes):
        if node.depth:
            continue
        made = {name for name in node.outputs if name in deep and (name in last_use or name in ends)}
        alive = {name for name in alive if last_use[name] > place} | {n for n in made if last_use.get(n, -1) > place}
        only = alive or made
        if len(only) == 1 and only <= made and not _next_is_inside(facts.nodes, place):
            borders.append(Border(next(iter(only)), place))
    return tuple(borders)


def _next_is_inside(nodes: tuple[Node, ...], place: int) -> bool:
    """Whether the nodes of this one's own body follow: what they read is not known to be over yet."""
    return place + 1 < len(nodes) and nodes[place + 1].depth > 0


def _computed_with_weights(facts: GraphFacts) -> set[str]:
    """Tensors that depend on both an input of the graph and a weight."""
    fixed = {name: constant.size_bytes >= WEIGHTY_BYTES for name, constant in facts.constants.items()}
    deep: set[str] = set()
    inside = False
    for node in facts.nodes:
        given = [name for name in node.inputs if name]
        weighty = any(fixed.get(name, False) for name in given)
        if given and all(name in fixed for name in given):
            fixed |= dict.fromkeys(node.outputs, weighty)
            continue
        inside = node.op_type in {"If", "Loop", "Scan"}
        if node.op_type not in SHAPES and (weighty or inside or any(name in deep for name in given)):
            deep.update(name for name in node.outputs if name)
    return deep
