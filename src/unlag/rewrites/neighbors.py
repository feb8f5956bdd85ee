"""Who makes a value and who reads it: the questions that every pattern starts with."""

from __future__ import annotations

import onnx_ir as ir


def readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Nodes that read the value, with the input at which they do."""
    return [(use.node, use.idx) for use in value.uses()]


def sole_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads the value; nothing if there are more, or if it is a graph output."""
    found = readers(value)
    return found[0][0] if len(found) == 1 and not value.is_graph_output() else None


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes the value, if it is one of these operators (in any domain)."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in op_types else None
