"""Graph outputs that nobody needs."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from unlag.model.graph import sweep


def drop_outputs(model: ir.Model, wanted: Collection[str]) -> int:
    """Drop the graph outputs of other names, with the nodes that only they need.

    Nothing is dropped where one of the wanted outputs is absent: then the names do not say which output is which.
    """
    outputs = model.graph.outputs
    if not set(wanted) <= {str(value.name) for value in outputs}:
        return 0
    extra = [value for value in outputs if value.name not in wanted]
    for value in extra:
        outputs.remove(value)
    if extra:
        sweep(model)
    return len(extra)
