"""Products whose sizes are no multiple of a tensor core's block, filled up with zeros."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import GraphIndex, facts_of
from unlag.model.graph import add_constant, constant_array, insert_node, opset_of, sweep
from unlag.rewrites.channel_pairs import ChannelPair, find_channel_pairs, input_axis, output_axis
from unlag.rewrites.evaluate import Evaluator
from unlag.rewrites.inferred_shapes import Shape, inferred_shapes
from unlag.rewrites.known_values import fixed_facts

Array = npt.NDArray[np.generic]

_OLDEST_OPSET = 11
"""From here on Slice and Pad take their ranges as inputs."""


def pad_dimensions(model: ir.Model, multiple: int = 8) -> int:
    """x·A with A [K, N] becomes x·A' with A' [K', N'], K' and N' the next multiples; the number of sizes that grew.

    Between two products with only elementwise work in between, channels of zeros are added to both: what they hold
    meets rows of zeros. Elsewhere x gets K' − K columns of zeros, and of the result the first N columns are taken.
    Nothing but the order of sums changes. Only constant matrices are filled up, and sizes below ``multiple`` stay: a
    classifier of two classes would become four times as wide.
    """
    if opset_of(model) < _OLDEST_OPSET:
        return 0
    grown = _pad_pairs(model, multiple)
    shapes = inferred_shapes(model)
    for node in list(model.graph):
        if _is_product(node):
            grown += _pad_inner(model.graph, node, multiple, shapes) + _pad_outer(model.graph, node, multiple)
    if grown:
        for node in model.graph:
            for value in node.outputs:
                if not value.is_graph_output():
                    value.shape = None  # widths that the file declares may be those before
        sweep(model)
    return grown


def missing(size: int, multiple: int) -> int:
    """What a size lacks to the next multiple; nothing where it is smaller than one."""
    return -size % multiple if size > multiple else 0


def _pad_pairs(model: ir.Model, multiple: int) -> int:
    grown = 0
    index = GraphIndex(fixed_facts(facts_of(model)))
    nodes = {str(node.outputs[0].name): node for node in model.graph}
    values = {str(v.name): v for node in model.graph for v in node.inputs if v is not None}
    for pair in find_channel_pairs(index):
        more = missing(pair.channels, multiple)
        if more and _is_finite_at_zero(pair, index):
            _widen(model.graph, nodes[pair.first.outputs[0]], output_axis(pair.first), more)
            _widen(model.graph, nodes[pair.second.outputs[0]], input_axis(pair.second), more)
            for name in pair.vectors:
                _widen_vector(model.graph, values[name], pair.channels, more)
            grown += 1
    return grown


def _is_finite_at_zero(pair: ChannelPair, index: GraphIndex) -> bool:
    """Whether a channel of zeros arrives as a number: rows of zeros don't take an infinity away."""
    if pair.zero_stays:
        return True
    zero = np.zeros(1, np.float32)
    known = {pair.first.outputs[0]: zero, **dict.fromkeys(pair.vectors, zero)}
    with np.errstate(all="ignore"):
        value = Evaluator(index, known).value(pair.second.inputs[0])
    return value is not None and bool(np.isfinite(value).all())


def _widen(graph: ir.Graph, node: ir.Node, axis: int, more: int) -> None:
    _replace(graph, node, 1, _filled(constant_array(node.inputs[1]), axis, more))


def _widen_vector(graph: ir.Graph, value: ir.Value, channels: int, more: int) -> None:
    array = constant_array(value)
    if array is not None:
        axis = next(axis for axis, size in enumerate(array.shape) if size == channels)
        value.replace_all_uses_with(add_constant(graph, _filled(array, axis, more), f"{value.name}.padded"))


def _filled(array: Array | None, axis: int, more: int) -> Array:
    if array is None:
        raise ValueError("a weight that was constant is none any more")
    widths = [(0, more if at == axis else 0) for at in range(array.ndim)]
    return np.pad(array, widths)


def _replace(graph: ir.Graph, node: ir.Node, position: int, array: Array) -> None:
    value = node.inputs[position]
    name = "weight" if value is None else str(value.name)
    node.replace_input_with(position, add_constant(graph, np.ascontiguousarray(array), f"{name}.padded"))


def _is_product(node: ir.Node) -> bool:
    """A matrix product by a constant matrix of floats."""
    if node.op_type not in {"MatMul", "Gemm"} or node.domain or node.attributes.get_int("transA", 0) != 0:
        return False
    weight = node.inputs[1]
    tensor = None if weight is None or weight.is_graph_input() else ir.convenience.get_const_tensor(weight)
    return tensor is not None and len(tensor.shape) == 2 and tensor.dtype.is_floating_point()


def _matrix(node: ir.Node) -> tuple[int, int]:
    """Axes of the weight that run over what the product reads, and what it gives."""
    outer = 0 if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0 else 1
    return 1 - outer, outer


def _size(node: ir.Node, axis: int) -> int:
    array = constant_array(node.inputs[1])
    return 0 if array is None else int(array.shape[axis])


def _pad_inner(graph: ir.Graph, node: ir.Node, multiple: int, shapes: dict[str, Shape]) -> int:
    source, axis = node.inputs[0], _matrix(node)[0]
    more = missing(_size(node, axis), multiple)
    rank = len(shapes.get(str(source.name), ())) if source is not None else 0
    if not more or source is None or not rank:
        return 0
    name = f"{node.name or node.outputs[0].name}.pad"
    widths = add_constant(graph, np.array([0] * (2 * rank - 1) + [more], np.int64), f"{name}.widths")
    node.replace_input_with(0, insert_node(node, "Pad", [source, widths], name=name))
    _widen(graph, node, axis, more)
    return 1


def _pad_outer(graph: ir.Graph, node: ir.Node, multiple: int) -> int:
    axis = _matrix(node)[1]
    columns = _size(node, axis)
    more = missing(columns, multiple)
    if not more or not _widen_bias(graph, node, columns, more):
        return 0
    _widen(graph, node, axis, more)
    name = str(node.outputs[0].name)
    bounds = [
        add_constant(graph, np.array([number], np.int64), f"{name}.{what}")
        for what, number in (("start", 0), ("end", columns), ("axis", -1))
    ]
    cut = ir.node("Slice", [node.outputs[0], *bounds], name=f"{name}.cut")
    result = node.outputs[0]
    graph.insert_after(node, cut)
    _hand_over(graph, result, cut.outputs[0], cut)
    return 1


def _hand_over(graph: ir.Graph, wide: ir.Value, narrow: ir.Value, cut: ir.Node) -> None:
    """Readers of the wide result read the narrow one, which takes over its name, type and shape."""
    name, narrow.type, narrow.shape = wide.name, wide.type, wide.shape
    for use in list(wide.uses()):
        if use.node is not cut:
            use.node.replace_input_with(use.idx, narrow)
    for index, output in enumerate(graph.outputs):
        if output is wide:
            graph.outputs[index] = narrow
    wide.name, narrow.name, wide.shape = f"{name}.wide", name, None


def _widen_bias(graph: ir.Graph, node: ir.Node, columns: int, more: int) -> bool:
    """Whether a Gemm's bias fits the wider result, made so where it has to be."""
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
    if bias is None:
        return True
    array = constant_array(bias)
    if array is None or bias.is_graph_input():
        return False
    if array.ndim and array.shape[-1] == columns:
        _replace(graph, node, 2, _filled(array, array.ndim - 1, more))
        return True
    return not array.ndim or array.shape[-1] == 1
