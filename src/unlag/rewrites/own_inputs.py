"""Inputs of chosen nodes apart from all other readers of the same tensors."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from unlag.model.graph import insert_node


def own_inputs(model: ir.Model, nodes: Collection[ir.Node]) -> int:
    """The chosen nodes read Identity(x) in place of x, one for all of them that read the same x; counts these.

    A quantizer that rounds a tensor rounds it for everybody who reads it, residuals and normalizations too. Runtimes
    take the Identity out.
    """
    made: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        source = node.inputs[0] if node in nodes and node.inputs else None
        if source is None:
            continue
        if source not in made:
            made[source] = insert_node(node, "Identity", [source], name=f"{source.name}.own")
            made[source].type, made[source].shape = ir.TensorType(ir.DataType.FLOAT), source.shape
        node.replace_input_with(0, made[source])
    return len(made)
