"""Copies in a graph that change nothing."""

from __future__ import annotations

from unlag.model.facts import GraphIndex, Node, dtype_name
from unlag.rewrites.element_types import fact_types
from unlag.rewrites.remove_casts import LONGEST_WAY, LOSSLESS, MOVING

_LOSSLESS = frozenset((dtype_name(start), dtype_name(wide)) for start, wide in LOSSLESS)


def redundant_copies(index: GraphIndex) -> list[Node]:
    """Transposes that undo another one, and Identity nodes."""
    checks = {"Identity": _is_identity, "Transpose": _is_undoing_transpose}
    return [
        node
        for node in index.facts.nodes
        if node.op_type in checks and not node.domain and checks[node.op_type](index, node)
    ]


def useless_casts(index: GraphIndex) -> list[Node]:
    """Casts to a value's own type, and those back from a wider type, the elements at most moved in between."""
    types = fact_types(index.facts)
    casts = (node for node in index.facts.nodes if node.op_type == "Cast" and not node.domain)
    return [node for node in casts if _is_useless_cast(index, node, types)]


def _is_identity(index: GraphIndex, node: Node) -> bool:
    """An Identity between two nodes; one that renames an input or a constant to an output is needed."""
    return index.producer(node.inputs[0]) is not None and node.outputs[0] in index.consumers


def _before(index: GraphIndex, node: Node) -> Node | None:
    before = index.producer(node.inputs[0])
    while before is not None and before.op_type == "Identity":
        before = index.producer(before.inputs[0])
    return before


def _is_undoing_transpose(index: GraphIndex, node: Node) -> bool:
    perm, before = node.attributes.get("perm"), _before(index, node)
    if not isinstance(perm, list):
        return False
    inner = before.attributes.get("perm") if before is not None and before.op_type == "Transpose" else None
    composed = [inner[int(axis)] for axis in perm] if isinstance(inner, list) else perm
    return composed == sorted(composed)


def _is_useless_cast(index: GraphIndex, node: Node, types: dict[str, str]) -> bool:
    source, result = types.get(node.inputs[0], "unknown"), types.get(node.outputs[0], "unknown")
    if source == result != "unknown":
        return True
    first = _before_moves(index, node.inputs[0])
    before = index.producer(first)
    if before is None or before.op_type != "Cast" or before.domain:
        return False
    start = types.get(before.inputs[0], "unknown")
    return start == result != "unknown" and (start, types.get(first, "unknown")) in _LOSSLESS


def _before_moves(index: GraphIndex, name: str) -> str:
    """The value that the named one was moved from, through nodes that nobody else reads."""
    outputs = {info.name for info in index.facts.outputs}
    for _step in range(LONGEST_WAY):
        node = index.producer(name)
        if node is None or node.domain or node.op_type not in MOVING or name in outputs:
            break
        if len(index.consumers.get(name, [])) != 1:
            break
        name = node.inputs[0]
    return name
