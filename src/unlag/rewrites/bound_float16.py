"""Float16 constants that overflowed when they were converted."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import constant_array

LARGEST = np.finfo(np.float16).max
"""65504."""


def bound_float16(model: ir.Model) -> int:
    """C = ±65504 where a float16 constant is ±inf; the number of constants that changed. NaN is left as it is.

    As the bias of a mask, -65504 hides as well as -inf does, and 0 · -65504 is 0 where 0 · -inf is NaN.
    """
    return sum(_bound(value) for value in model.graph.initializers.values()) + sum(
        _bound_node(node) for node in model.graph.all_nodes() if node.op_type == "Constant"
    )


def _bounded(value: ir.Value) -> ir.TensorProtocol | None:
    array = constant_array(value)
    if array is None or array.dtype != np.float16 or not np.isinf(array).any():
        return None
    return ir.tensor(np.where(np.isinf(array), np.copysign(LARGEST, array), array).astype(np.float16), name=value.name)


def _bound(value: ir.Value) -> bool:
    tensor = _bounded(value)
    if tensor is not None:
        value.const_value = tensor
    return tensor is not None


def _bound_node(node: ir.Node) -> bool:
    tensor = _bounded(node.outputs[0]) if "value" in node.attributes else None
    if tensor is not None:
        node.attributes["value"] = ir.AttrTensor("value", tensor)
        node.outputs[0].const_value = tensor
    return tensor is not None
