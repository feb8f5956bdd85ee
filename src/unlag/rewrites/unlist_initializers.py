"""Initializers that are graph inputs too become constants."""

from __future__ import annotations

import onnx_ir as ir

FIRST_WITH_CONSTANTS = 4
"""The IR version from which on an initializer need not be an input."""


def unlist_initializers(model: ir.Model, keep: frozenset[str] = frozenset()) -> int:
    """Take initializers off the list of graph inputs, but for those of these names, which a caller feeds.

    Files of IR versions before 4 must list them, and runtimes take them as constants there: nothing is done.
    """
    graph = model.graph
    if (model.ir_version or 0) < FIRST_WITH_CONSTANTS:
        return 0
    listed = [v for v in graph.inputs if v.name in graph.initializers and v.name not in keep]
    for value in listed:
        graph.inputs.remove(value)
    return len(listed)
