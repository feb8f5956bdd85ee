import onnx
import onnx_ir as ir
from onnx import helper

from planting import Pair, cnn_feed, editable, tiny_bert, tiny_cnn

CONSEQUENCES = frozenset({"unfused_activation"})
"""The runtime does not recognize GELU by constants that a caller may replace."""


def plant() -> Pair:
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """A file of an IR version that must list its initializers: they are constants all the same."""
    old = onnx.ModelProto()
    old.CopyFrom(tiny_cnn())
    old.ir_version = 3
    for tensor in old.graph.initializer:
        old.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return Pair(tiny_cnn(), {}, old, {}, feed=cnn_feed())


def infect(model: ir.Model) -> int:
    """List every initializer."""
    listed = [v for v in model.graph.initializers.values() if v not in model.graph.inputs]
    for value in listed:
        value.shape = ir.Shape(value.const_value.shape)
        value.type = ir.TensorType(value.const_value.dtype)
        model.graph.inputs.append(value)
    return len(listed)
