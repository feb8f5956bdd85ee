"""Let a model give out the tensors inside it."""

from __future__ import annotations

import onnx_ir as ir


def expose_tensors(model: ir.Model) -> tuple[str, ...]:
    """Make every tensor that a node of the main graph computes an output; names in the order of the nodes.

    Outputs that the graph has already keep their places, and are named too. Sequences and optionals stay inside.
    """
    graph = model.graph
    names = []
    for node in graph:
        if node.op_type == "Constant":
            continue
        for value in node.outputs:
            if not value.name or isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
                continue
            names.append(value.name)
            if not value.is_graph_output():
                graph.outputs.append(value)
    return tuple(names)
