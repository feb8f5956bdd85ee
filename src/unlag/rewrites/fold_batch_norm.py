"""Scales and shifts per channel behind a convolution or Gemm, folded into its weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import Constant, GraphIndex, Node
from unlag.model.graph import add_constant, constant_array, replace_output, sweep
from unlag.rewrites.neighbors import sole_reader

Array = npt.NDArray[np.float64]

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators with a weight per output channel and room for a bias."""

_LAYOUT = frozenset({"ReorderOutput", "ReorderInput"})
"""What a runtime puts between operators without changing a value."""
_BINARY = frozenset({"Mul", "Add", "Sub", "Div"})


def unfolded_scalings(index: GraphIndex) -> list[Node]:
    """Nodes that only scale and shift the channels of a product with constant weights, which nobody else reads."""
    outputs = {info.name for info in index.facts.outputs}
    found: list[Node] = []
    for node in index.facts.nodes:
        if node.op_type in WEIGHTED and _has_constant_weight(index, node) and not _has_activation(node):
            found += _scalings_behind(index, node, outputs)
    return found


def _has_constant_weight(index: GraphIndex, node: Node) -> bool:
    weight = index.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return weight is not None and weight.dtype == "float32"


def _has_activation(node: Node) -> bool:
    return bool(node.attributes.get("activation"))


def _scalings_behind(index: GraphIndex, product: Node, outputs: set[str]) -> list[Node]:
    found: list[Node] = []
    name = product.outputs[0]
    while name not in outputs:
        readers = index.consumers.get(name, [])
        if len(readers) != 1:
            break
        reader = readers[0]
        if reader.op_type not in _LAYOUT:
            if not _is_scaling(index, product, reader):
                break
            found.append(reader)
        name = reader.outputs[0]
        if _has_activation(reader):
            break
    return found


def _is_scaling(index: GraphIndex, product: Node, node: Node) -> bool:
    if node.op_type == "BatchNormalization":
        return len(node.outputs) == 1 and all(index.constant(name) is not None for name in node.inputs[1:])
    if node.op_type == "Conv":
        return _is_scaling_convolution(index, node)
    if node.op_type not in _BINARY or node.domain:
        return False
    held = [c for name in node.inputs if (c := index.constant(name)) is not None]
    reversed_order = index.constant(node.inputs[0]) is not None and node.op_type in {"Sub", "Div"}
    return len(held) == 1 and not reversed_order and _is_per_channel(held[0].shape, _channel_rank(index, product))


def _channel_rank(index: GraphIndex, product: Node) -> int:
    """Axes from the channels to the end of what the product gives."""
    weight = index.facts.constants[product.inputs[1]]
    return 1 if product.op_type == "Gemm" else len(weight.shape) - 1


def _is_per_channel(shape: tuple[int, ...], rank: int) -> bool:
    """[C, 1, 1] or [1, C, 1, 1] for images, [C] or [1, C] for rows; more than one channel."""
    return (
        rank <= len(shape) <= rank + 1
        and shape[-rank] > 1
        and all(size == 1 for axis, size in enumerate(shape) if axis != len(shape) - rank)
    )


def _is_scaling_convolution(index: GraphIndex, node: Node) -> bool:
    """A depthwise 1×1 convolution: what a layout pass makes of BatchNormalization."""
    weight: Constant | None = index.constant(node.inputs[1])
    group = node.attributes.get("group", 1)
    plain = all(
        not isinstance(value := node.attributes.get(name), list) or all(v == wanted for v in value)
        for name, wanted in (("pads", 0), ("strides", 1))
    )
    return (
        weight is not None
        and isinstance(group, int)
        and group > 1
        and plain
        and weight.shape[0] >= group
        and all(size == 1 for size in weight.shape[1:])
        and node.attributes.get("auto_pad", "NOTSET") in {"NOTSET", "VALID"}
    )


class _Affine(NamedTuple):
    scale: Array
    shift: Array


def fold_batch_norm(model: ir.Model) -> int:
    """BatchNormalization, Mul, Add, Sub and Div per channel become part of the weights and bias in front of them.

    Only where the product's result is read by nothing else, its weights are float32 constants and no activation
    stands between. A weight that others read too is copied. A Gemm must have alpha and beta of 1.
    """
    folded = 0
    for node in list(model.graph):
        if node.op_type in WEIGHTED and not node.domain:
            while _fold_next(model.graph, node):
                folded += 1
    if folded:
        sweep(model)
    return folded


def _fold_next(graph: ir.Graph, node: ir.Node) -> bool:
    if any(value is not None and value.is_graph_input() for value in node.inputs[1:]):
        return False
    weight = constant_array(node.inputs[1])
    bias = constant_array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    reader = sole_reader(node.outputs[0])
    if weight is None or weight.dtype != np.float32 or reader is None or reader.graph is not graph:
        return False
    has_dynamic_bias = len(node.inputs) > 2 and node.inputs[2] is not None and bias is None
    axis = _output_axis(node)
    if has_dynamic_bias or axis is None:
        return False
    channels = weight.shape[axis]
    rank = 1 if node.op_type == "Gemm" else weight.ndim - 1
    affine = _affine_of(reader, node.outputs[0], channels, rank)
    if affine is None or (bias is not None and bias.shape != (channels,)):
        return False
    shape = [1] * weight.ndim
    shape[axis] = channels
    before = np.zeros(channels) if bias is None else bias.astype(np.float64)
    name = node.name or str(node.outputs[0].name)
    new_weight = (weight.astype(np.float64) * affine.scale.reshape(shape)).astype(np.float32)
    new_bias = (before * affine.scale + affine.shift).astype(np.float32)
    node.replace_input_with(1, add_constant(graph, new_weight, f"{name}.folded_weight"))
    folded_bias = add_constant(graph, new_bias, f"{name}.folded_bias")
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, folded_bias)
    replace_output(reader.outputs[0], node.outputs[0])
    graph.remove(reader, safe=True)
    return True


def _output_axis(node: ir.Node) -> int | None:
    """The weight's axis of output channels; nothing where the weight can't take a scale for each."""
    attributes = node.attributes
    if node.op_type == "Gemm":
        plain = attributes.get_float("alpha", 1.0) == 1.0 and attributes.get_float("beta", 1.0) == 1.0
        return (0 if attributes.get_int("transB", 0) else 1) if plain else None
    if node.op_type == "ConvTranspose":
        return 1 if attributes.get_int("group", 1) == 1 else None
    return 0


def _affine_of(node: ir.Node, source: ir.Value, channels: int, rank: int) -> _Affine | None:
    if node.domain or any(value is None or (value.is_graph_input() and value is not source) for value in node.inputs):
        return None
    if node.op_type == "BatchNormalization":
        return _normalizing(node, source, channels)
    if node.op_type not in _BINARY or len(node.inputs) != 2:
        return None
    position = 1 if node.inputs[0] is source else 0
    if position == 0 and node.op_type in {"Sub", "Div"}:
        return None
    array = constant_array(node.inputs[position])
    if array is None or array.dtype != np.float32 or not _is_per_channel(array.shape, rank) or array.size != channels:
        return None
    return _binary(node.op_type, array.reshape(-1).astype(np.float64))


def _binary(op_type: str, row: Array) -> _Affine | None:
    ones, zeros = np.ones_like(row), np.zeros_like(row)
    if op_type == "Div":
        return None if np.any(row == 0) else _Affine(1 / row, zeros)
    return {"Mul": _Affine(row, zeros), "Add": _Affine(ones, row), "Sub": _Affine(ones, -row)}[op_type]


def _normalizing(node: ir.Node, source: ir.Value, channels: int) -> _Affine | None:
    rows = [constant_array(value) for value in node.inputs[1:5]]
    if node.inputs[0] is not source or len(node.outputs) > 1 or node.attributes.get_int("training_mode", 0) == 1:
        return None
    known = [row.astype(np.float64) for row in rows if row is not None and row.shape == (channels,)]
    if len(known) != 4:
        return None
    gamma, beta, mean, variance = known
    scale = gamma / np.sqrt(variance + (node.attributes.get_float("epsilon", 1e-5) or 0.0))
    return _Affine(scale, beta - mean * scale)
