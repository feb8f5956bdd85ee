"""Copies in a graph that change nothing."""

from __future__ import annotations

from collections.abc import Callable

from unlag.model.facts import GraphIndex, Node, dtype_name
from unlag.rewrites.element_types import fact_types
from unlag.rewrites.remove_copies import LOSSLESS

_LOSSLESS = frozenset((dtype_name(start), dtype_name(wide)) for start, wide in LOSSLESS)


def redundant_copies(index: GraphIndex) -> list[Node]:
    """Transposes that undo another one, Identity nodes, and casts to a value's own type or to and fro."""
    types = fact_types(index.facts)
    checks: dict[str, Callable[[Node], bool]] = {
        "Identity": lambda node: _is_identity(index, node),
        "Transpose": lambda node: _is_undoing_transpose(index, node),
        "Cast": lambda node: _is_useless_cast(index, node, types),
    }
    return [
        node for node in index.facts.nodes if node.op_type in checks and not node.domain and checks[node.op_type](node)
    ]


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
    before = _before(index, node)
    source, result = types.get(node.inputs[0], "unknown"), types.get(node.outputs[0], "unknown")
    if source == result != "unknown":
        return True
    if before is None or before.op_type != "Cast":
        return False
    start = types.get(before.inputs[0], "unknown")
    return start == result != "unknown" and (start, source) in _LOSSLESS
