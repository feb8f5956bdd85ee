"""Weights dequantized at every run become plain float constants."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, sweep
from unlag.rewrites.stored_weights import FLOAT_TYPES, chain_nodes, stored_codes, weight_array


def fold_dequantize(model: ir.Model) -> int:
    """(codes − zero) · scale, then casts and transposes: all constant, so computed once, here.

    The chain may be DequantizeLinear, or Cast, Sub and Mul; the new constant takes the name and the element
    type of the chain's last value. Rows that are looked up first and dequantized after (Gather in between) stay.
    """
    tops = [value for node in model.graph for value in node.outputs if _is_top(value)]
    folded = sum(_fold(model.graph, value) for value in tops)
    if folded:
        sweep(model)
    return folded


def _is_top(value: ir.Value) -> bool:
    """Whether the value ends a chain of codes: somebody outside of the chain reads it."""
    if value.is_graph_output() or stored_codes(value) is None:
        return False
    return any(all(not _continues(out) for out in use.node.outputs) for use in value.uses())


def _continues(value: ir.Value) -> bool:
    return chain_nodes(value) is not None and not value.is_graph_output()


def _fold(graph: ir.Graph, value: ir.Value) -> bool:
    array = weight_array(value)
    if array is None or ir.DataType.from_numpy(array.dtype) not in FLOAT_TYPES:
        return False
    name = str(value.name)
    value.name = f"{name}.dequantized"
    value.replace_all_uses_with(add_constant(graph, np.ascontiguousarray(array), name))
    return True
