"""Activation scales that are taken from each run's values, made constants."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, insert_node, sweep

LARGEST_CODE = 255


def freeze_activation_scales(model: ir.Model, ranges: Mapping[str, tuple[float, float]]) -> int:
    """(q, s, z) = DynamicQuantizeLinear(x) becomes q = QuantizeLinear(x, s, z) with s and z from ``ranges``.

    ``ranges`` gives the least and largest value by tensor name. As in the dynamic operator, the range is widened to
    hold 0, which then has a code of its own. Nodes whose input has no known range, and outputs of the graph, stay.
    """
    frozen = 0
    for node in list(model.graph.all_nodes()):
        source = node.inputs[0] if node.op_type == "DynamicQuantizeLinear" and not node.domain else None
        seen = None if source is None else ranges.get(str(source.name))
        if seen is None or not all(map(math.isfinite, seen)) or any(v.is_graph_output() for v in node.outputs):
            continue
        _freeze(model.graph, node, *seen)
        frozen += 1
    if frozen:
        sweep(model)
    return frozen


def _freeze(graph: ir.Graph, node: ir.Node, least: float, largest: float) -> None:
    least, largest = min(least, 0.0), max(largest, 0.0)
    step = (largest - least) / LARGEST_CODE or 1.0
    zero = round(min(max(-least / step, 0), LARGEST_CODE))
    name = str(node.inputs[0].name)  # type: ignore[union-attr]  # the caller looked at it
    scale = add_constant(graph, np.array(step, np.float32), f"{name}.frozen_scale")
    zero_point = add_constant(graph, np.array(zero, np.uint8), f"{name}.frozen_zero_point")
    codes = insert_node(
        node, "QuantizeLinear", [node.inputs[0], scale, zero_point], name=f"{node.outputs[0].name}.frozen"
    )
    codes.type, codes.shape = ir.TensorType(ir.DataType.UINT8), node.outputs[0].shape
    for old, new in zip(node.outputs, (codes, scale, zero_point), strict=False):
        old.replace_all_uses_with(new)
    if node.graph is not None:
        node.graph.remove(node, safe=True)
