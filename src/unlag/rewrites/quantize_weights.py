"""Weight-only INT8 that costs nothing at run time: small on disk, float32 again when the model is loaded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, insert_node, sweep
from unlag.rewrites.requantize_weights import quantize_columns

_WEIGHT_INPUTS = {"MatMul": 1, "Gemm": 1, "Conv": 1, "Attention": 1}


def quantize_weights(model: ir.Model, nodes: Iterable[ir.Node]) -> int:
    """W ≈ s·C becomes Mul(Cast(C), s), with int8 codes C and a scale for each output column or channel.

    ONNX Runtime folds this chain into a constant when it loads the model. It does not fold a DequantizeLinear, out of
    which it makes integer or block kernels instead.
    """
    restored: dict[ir.Value, ir.Value] = {}
    changed = 0
    for node in nodes:
        index = _WEIGHT_INPUTS.get(node.op_type)
        value = None if index is None else node.inputs[index]
        array = constant_array(value)
        if index is None or value is None or array is None or array.dtype != np.float32 or array.ndim < 2:
            continue
        if value not in restored:
            codes, scales = quantize_columns(array.astype(np.float32, copy=False), _column_axis(node, array.ndim))
            stored = add_constant(model.graph, codes, f"{value.name}.codes")
            scale = add_constant(model.graph, scales, f"{value.name}.scales")
            first = next(iter(model.graph))
            to = {"to": int(ir.DataType.FLOAT)}
            wide = insert_node(first, "Cast", [stored], name=f"{value.name}.widened", attributes=to)
            restored[value] = insert_node(first, "Mul", [wide, scale], name=f"{value.name}.scaled")
            restored[value].type, restored[value].shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        node.replace_input_with(index, restored[value])
        changed += 1
    if changed:
        sweep(model)
    return changed


def _column_axis(node: ir.Node, rank: int) -> int:
    """The axis of a weight that runs over the outputs."""
    if node.op_type == "Conv" or (node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))):
        return 0
    return rank - 1
