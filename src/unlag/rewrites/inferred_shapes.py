"""Shapes of a model's values, declared or inferred."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

Shape = tuple[int | None, ...]


def inferred_shapes(model: ir.Model) -> dict[str, Shape]:
    """Shapes by name, a dimension that can't be told being nothing; the model is left as it is.

    Values of unknown rank, and all where inference fails, are left out but for those that the file declares.
    """
    copy = model.clone()
    try:
        inferred = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(copy).model
    except Exception:  # noqa: BLE001 - onnx raises many kinds on operators that it does not know
        inferred = copy
    graph = inferred.graph
    values = (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs))
    known = {str(v.name): v.shape for v in values if v.shape is not None}
    return {name: tuple(d if isinstance(d, int) else None for d in shape) for name, shape in known.items()}
