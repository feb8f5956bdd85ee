import numpy as np
import onnx_ir as ir

from planting import Pair, cnn_feed, editable, tiny_cnn
from unlag.model.graph import add_constant, constant_array


def plant() -> Pair:
    """(x − mean) · scale + shift behind each convolution."""
    model = editable(tiny_cnn())
    infect(model)
    return Pair(tiny_cnn(), {}, ir.to_proto(model), {}, feed=cnn_feed())


def twin() -> Pair:
    """BatchNormalization behind each convolution, which the runtime folds."""
    model = editable(tiny_cnn())
    for node, channels in _convolutions(model):
        rows = [np.ones(channels), np.zeros(channels), np.zeros(channels), np.full(channels, 1.0)]
        constants = [
            add_constant(model.graph, row.astype(np.float32), f"{node.name}.bn{i}") for i, row in enumerate(rows)
        ]
        _put_behind(model.graph, node, "BatchNormalization", constants)
    return Pair(tiny_cnn(), {}, ir.to_proto(model), {}, feed=cnn_feed())


def infect(model: ir.Model) -> int:
    """Each convolution's bias, and a scale, as three operators behind it; outputs stay."""
    rng = np.random.default_rng(0)
    convolutions = _convolutions(model)
    for node, channels in convolutions:
        weight, bias = constant_array(node.inputs[1]), None
        rank = weight.ndim - 1
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = constant_array(node.inputs[2])
        mean, scale = rng.standard_normal(channels) * 0.1, rng.uniform(0.5, 2.0, channels)
        shape = (channels,) + (1,) * rank
        name = node.name or node.outputs[0].name
        unscaled = (weight / scale.reshape(shape)).astype(np.float32)
        node.replace_input_with(1, add_constant(model.graph, unscaled, f"{name}.unscaled"))
        node.resize_inputs(3)
        node.replace_input_with(2, add_constant(model.graph, mean.astype(np.float32), f"{name}.mean"))
        shift = np.zeros(channels) if bias is None else bias
        after = node
        for op_type, row in (("Sub", mean), ("Mul", scale), ("Add", shift)):
            constant = row.astype(np.float32).reshape((channels,) + (1,) * (rank - 1))
            value = add_constant(model.graph, constant, f"{name}.{op_type.lower()}")
            after = _put_behind(model.graph, after, op_type, [value])
    return len(convolutions)


def _convolutions(model: ir.Model) -> list[tuple[ir.Node, int]]:
    """Convolutions with constant float weights (and bias), and how many channels they give."""
    found = []
    for node in model.graph:
        if node.op_type != "Conv" or node.domain or node.outputs[0].is_graph_output():
            continue
        arrays = [constant_array(value) for value in node.inputs[1:]]
        if all(array is not None and array.dtype == np.float32 for array in arrays):
            found.append((node, arrays[0].shape[0]))
    return found


def _put_behind(graph: ir.Graph, node: ir.Node, op_type: str, constants: list[ir.Value]) -> ir.Node:
    value = node.outputs[0]
    users = [(use.node, use.idx) for use in value.uses()]
    new = ir.node(op_type, [value, *constants], name=f"{node.name or value.name}.{op_type.lower()}")
    new.outputs[0].name = f"{new.name}.out"
    graph.insert_after(node, new)
    for user, position in users:
        user.replace_input_with(position, new.outputs[0])
    return new
