"""Where a product of integers is planted, ``standardize`` plants the same one with unsigned codes."""

import numpy as np
import onnx_ir as ir
from onnxruntime.quantization import QuantFormat, QuantType

from calibrating import (
    Ranges,
    is_even,
    largest,
    products,
    random_feed,
    scale_and_zero,
    statically_quantized,
    tensors_of,
)
from planting import NEW_X86, Pair, cnn_feed, tiny_cnn
from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep

MOST_MATRICES, MOST_CONVOLUTIONS = 3, 1
"""A convolution of signed codes takes ten times as long."""


def plant() -> Pair:
    quantized = statically_quantized(tiny_cnn(), cnn_feed(), QuantType.QInt8, QuantFormat.QOperator)
    return Pair(tiny_cnn(), {}, quantized, {}, isa=NEW_X86, feed=cnn_feed())


def twin() -> Pair:
    """Signed activations in QDQ form, where each tensor is read once: the runtime shifts them itself."""
    quantized = statically_quantized(tiny_cnn(), cnn_feed(), QuantType.QInt8)
    return Pair(tiny_cnn(), {}, quantized, {}, isa=NEW_X86, feed=cnn_feed())


def infect(model: ir.Model) -> int:
    """Products in integer form: int8 activations, int8 weights."""
    return _quantize(model, "int8")


def standardize(model: ir.Model) -> int:
    """The same products with uint8 activations, for a standard that is quantized as well."""
    return _quantize(model, "uint8")


def _quantize(model: ir.Model, dtype: str) -> int:
    feed = random_feed(model)
    if feed is None:
        return 0
    candidates = [node for node in products(model) if "auto_pad" not in node.attributes]
    names = {str(value.name) for node in candidates for value in (node.inputs[0], node.outputs[0])}
    held = tensors_of(ir.to_proto(model), names, feed)
    even = [n for n in candidates if is_even(held[n.inputs[0].name]) and is_even(held[n.outputs[0].name])]
    chosen = [
        *largest([node for node in even if node.op_type == "MatMul"], MOST_MATRICES),
        *largest([node for node in even if node.op_type == "Conv"], MOST_CONVOLUTIONS),
    ]
    ranges = {name: (float(held[name].min()), float(held[name].max())) for name in names}
    for node in chosen:
        _replace(model, node, ranges, dtype)
    sweep(model)
    return len(chosen)


def _replace(model: ir.Model, node: ir.Node, ranges: Ranges, dtype: str) -> None:
    source, result, name = node.inputs[0], node.outputs[0], node.outputs[0].name

    def constants(*arrays: np.ndarray) -> list[ir.Value]:
        return [add_constant(model.graph, array, f"{name}.{place}") for place, array in enumerate(arrays)]

    weight = constant_array(node.inputs[1])
    steps = np.abs(weight).max() / 127
    before, after = (scale_and_zero(*ranges[str(v.name)], dtype) for v in (source, result))
    in_scale, in_zero = constants(*before)
    out_scale, out_zero = constants(*after)
    codes = np.rint(weight / steps).astype(np.int8)
    stored = constants(codes, np.array(steps, np.float32), np.array(0, np.int8))
    quantized = insert_node(node, "QuantizeLinear", [source, in_scale, in_zero], name=f"{name}.quantize")
    inputs = [quantized, in_scale, in_zero, *stored, out_scale, out_zero]
    if node.op_type == "Conv" and len(node.inputs) > 2:
        bias = np.rint(constant_array(node.inputs[2]) / (before[0] * steps)).astype(np.int32)
        inputs += constants(bias)
    op_type = "QLinearConv" if node.op_type == "Conv" else "QLinearMatMul"
    made = insert_node(node, op_type, inputs, name=f"{name}.integer")
    for key, attribute in node.attributes.items():
        made.producer().attributes[key] = attribute
    back = insert_node(node, "DequantizeLinear", [made, out_scale, out_zero], name=f"{name}.dequantize")
    replace_output(result, back)
