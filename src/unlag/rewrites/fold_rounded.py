"""Weights dequantized from codes of few bits become plain float constants."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, sweep
from unlag.rewrites.stored_weights import constant_type, read_weights, stored_codes, weight_array

FEW_BITS = frozenset({ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2})


def fold_rounded(model: ir.Model) -> int:
    """(codes − zero) · scale in front of MatMul, Gemm and Gather, where a code has at most 4 bits: computed once, here.

    The constant keeps the element type and gets a name of its own. Other codes stay.
    """
    folded = 0
    for weight in list(read_weights(model)):
        codes = stored_codes(weight.read)
        array = weight_array(weight.read) if codes is not None and constant_type(codes) in FEW_BITS else None
        if array is None or weight.read.is_graph_output():
            continue
        constant = add_constant(model.graph, np.ascontiguousarray(array), f"{weight.read.name}.widened")
        weight.read.replace_all_uses_with(constant)
        folded += 1
    if folded:
        sweep(model)
    return folded
