"""Gemm as MatMul and Add: integer and block kernels exist for MatMul only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep


def split_gemm(model: ir.Model) -> dict[str, str]:
    """x·Wᵀ + b in one node becomes two, for Gemm nodes of the main graph with a constant W and no factors.

    Gives the names of the MatMul nodes by those of the Gemm nodes that they stand for.
    """
    turned: dict[ir.Value, ir.Value] = {}
    made = {}
    for node in list(model.graph):
        if node.op_type == "Gemm" and is_plain_gemm(node):
            made[str(node.name)] = _split(model.graph, node, turned)
    if made:
        sweep(model)
    return made


def is_plain_gemm(node: ir.Node) -> bool:
    """x·W + b with a constant matrix W: no factors, and x not transposed."""
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    return factors == [1.0, 1.0] and not node.attributes.get_int("transA", 0) and _matrix(node) is not None


def _matrix(node: ir.Node) -> np.ndarray | None:
    array = constant_array(node.inputs[1])
    return array if array is not None and array.ndim == 2 and array.dtype == np.float32 else None


def _split(graph: ir.Graph, node: ir.Node, turned: dict[ir.Value, ir.Value]) -> str:
    weight, array = node.inputs[1], _matrix(node)
    if weight is None or array is None:
        raise ValueError(f"{node.name} has no constant weight")
    if node.attributes.get_int("transB", 0):
        if weight not in turned:
            turned[weight] = add_constant(graph, np.ascontiguousarray(array.T), f"{weight.name}.turned")
        weight = turned[weight]
    output, bias = node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    name = f"{node.name or output.name}.product"
    result = insert_node(node, "MatMul", [node.inputs[0], weight], name=name)
    result.type, result.shape = output.type, output.shape
    if bias is not None:
        result = insert_node(node, "Add", [result, bias], name=f"{node.name or output.name}.sum")
    result.type, result.shape = output.type, output.shape
    replace_output(output, result)
    return name
