"""Weights that are too small for a normal float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import constant_array

TINY = np.finfo(np.float32).tiny
"""1.18e-38, the smallest normal number."""


def flush_subnormals(model: ir.Model) -> int:
    """W = 0 where 0 < abs(w) < 1.18e-38, in float32 constants; the number of constants that changed."""
    return sum(_flush(value) for value in model.graph.initializers.values()) + sum(
        _flush_node(node) for node in model.graph.all_nodes() if node.op_type == "Constant"
    )


def _flushed(value: ir.Value) -> ir.TensorProtocol | None:
    """The constant without subnormal numbers; nothing where it holds none."""
    array = constant_array(value)
    if array is None or array.dtype != np.float32:
        return None
    subnormal = (array != 0) & (np.abs(array) < TINY)
    if not subnormal.any():
        return None
    return ir.tensor(np.where(subnormal, np.float32(0), array), name=value.name)


def _flush(value: ir.Value) -> bool:
    tensor = _flushed(value)
    if tensor is not None:
        value.const_value = tensor
    return tensor is not None


def _flush_node(node: ir.Node) -> bool:
    tensor = _flushed(node.outputs[0]) if "value" in node.attributes else None
    if tensor is not None:
        node.attributes["value"] = ir.AttrTensor("value", tensor)
        node.outputs[0].const_value = tensor
    return tensor is not None
