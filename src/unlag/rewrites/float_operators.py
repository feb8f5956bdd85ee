"""Operators with fixed integer scales taken back to floats: QLinear operators, and operators between Q and DQ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.graph import add_constant, insert_node, replace_output, sweep
from unlag.rewrites.activation_codes import MOVING
from unlag.rewrites.neighbors import made_by, readers
from unlag.rewrites.packed_weights import Array, fixed_array, given, scaled
from unlag.rewrites.remove_quantize_pairs import remove_quantize_pairs
from unlag.rewrites.stored_weights import constant_type, weight_array

Chosen = Callable[[ir.Node], bool]

_WEIGHTED = frozenset({"Conv", "MatMul", "Gemm"})
_PLAIN = frozenset({"Softmax", "AveragePool", "MaxPool"})
"""Operators without weights that can be taken back."""
_WITH_KERNELS = MOVING | _PLAIN | {
    "Add", "Mul", "Sigmoid", "LeakyRelu", "GlobalAveragePool", "Concat", "Where", "Resize", "Relu", "Clip",
}  # fmt: skip
"""Operators without weights that runtimes compute from codes."""


def float_operators(model: ir.Model, chosen: Chosen) -> int:
    """What ``chosen`` wants of QLinearConv, QLinearMatMul and of quantized Conv, MatMul, Gemm, Softmax and poolings.

    Weights and biases become float constants. Activations are still rounded to codes where an integer operator is at
    one of the two ends, and are left as floats where none is. An operator without weights behind a quantized
    convolution stays, since its input's codes are what keeps the convolution an integer one. Counts the operators.
    """
    changed = 0
    for node in list(model.graph):
        if node.op_type in {"QLinearConv", "QLinearMatMul"} and not node.domain:
            changed += chosen(node) and _spell_out(node)
        elif node.op_type in _WEIGHTED and chosen(node):
            changed += _fold_weights(model.graph, node, chosen)
        elif node.op_type in _PLAIN and chosen(node):
            changed += _is_integer(node, lambda _node: False) and _read_floats(node, 0, chosen)
    if changed:
        _drop_pairs(model, chosen)
        sweep(model)
    return changed


def _spell_out(node: ir.Node) -> bool:
    """QLinearConv(x, s, z, W, s, z, s_y, z_y, bias) → DequantizeLinear, Conv by float weights, QuantizeLinear."""
    graph, convolution = node.graph, node.op_type == "QLinearConv"
    weight, bias = _weight_of(node), _bias_of(node) if convolution else None
    is_constant = fixed_array(given(node, 3)) is not None
    if not isinstance(graph, ir.Graph) or (weight is None and (convolution or is_constant)):
        return False
    if bias is None and given(node, 8) is not None:
        return False
    name = str(node.outputs[0].name)  # names of nodes need not differ, those of values do
    inputs = [insert_node(node, "DequantizeLinear", list(node.inputs[:3]), name=f"{name}.dequantize")]
    if weight is not None:
        inputs.append(add_constant(graph, weight, f"{name}.weight.float"))
    else:
        inputs.append(insert_node(node, "DequantizeLinear", list(node.inputs[3:6]), name=f"{name}.dequantize_right"))
    if bias is not None:
        inputs.append(add_constant(graph, bias, f"{name}.bias.float"))
    attributes = {k: a for k, a in node.attributes.items() if isinstance(a, ir.Attr)}
    made = ir.node("Conv" if convolution else "MatMul", inputs, attributes=attributes, name=f"{name}.float")
    made.outputs[0].name = f"{name}.float.out"
    graph.insert_before(node, made)
    codes = insert_node(node, "QuantizeLinear", [made.outputs[0], *node.inputs[6:8]], name=f"{name}.quantize")
    codes.type, codes.shape = node.outputs[0].type, node.outputs[0].shape
    replace_output(node.outputs[0], codes)
    return True


def _weight_of(node: ir.Node) -> Array | None:
    codes, scale, zero = (fixed_array(given(node, index)) for index in (3, 4, 5))
    if codes is None or scale is None or zero is None or scale.dtype != np.float32:
        return None
    return scaled(codes, scale, zero, 0 if node.op_type == "QLinearConv" else codes.ndim - 1)


def _bias_of(node: ir.Node) -> npt.NDArray[np.float32] | None:
    """int32 codes with the scale of the activation times that of the weight."""
    codes, left, right = (fixed_array(given(node, index)) for index in (8, 1, 4))
    if codes is None or left is None or right is None or left.size != 1:
        return None
    scale = left.astype(np.float32).reshape(()) * right.astype(np.float32).reshape(-1)
    return codes.astype(np.float32) * scale


def _fold_weights(graph: ir.Graph, node: ir.Node, chosen: Chosen) -> bool:
    """Float constants in place of a weight and a bias that are dequantized, where the activation is, too."""
    if any(made_by(given(node, index), "DequantizeLinear") is None for index in (0, 1)):
        return False
    if not _fold(graph, node, 1):
        read = [_read_floats(node, index, chosen) for index in (0, 1)]
        return any(read)
    if given(node, 2) is not None and constant_type(node.inputs[2]) is None:
        _fold(graph, node, 2)
    return True


def _fold(graph: ir.Graph, node: ir.Node, index: int) -> bool:
    value = node.inputs[index]
    array = None if value is None else weight_array(value)
    if value is None or array is None:
        return False
    node.replace_input_with(index, add_constant(graph, np.ascontiguousarray(array), f"{value.name}.float"))
    return True


def _read_floats(node: ir.Node, index: int, chosen: Chosen) -> bool:
    """Let an operator read what was there before it was quantized."""
    dequantizer = made_by(given(node, index), "DequantizeLinear")
    quantizer = None if dequantizer is None else made_by(dequantizer.inputs[0], "QuantizeLinear")
    source = None if quantizer is None else quantizer.inputs[0]
    if source is None or _needs_codes(source, chosen):
        return False
    node.replace_input_with(index, source)
    return True


def _needs_codes(value: ir.Value, chosen: Chosen) -> bool:
    """Whether the tensor comes from a convolution that is an integer one only because its result is quantized."""
    maker = value.producer()
    while maker is not None and maker.op_type in {"Relu", "Clip"}:
        maker = None if maker.inputs[0] is None else maker.inputs[0].producer()
    return maker is not None and maker.op_type in {"Conv", "Gemm"} and _is_integer(maker, chosen)


def _drop_pairs(model: ir.Model, chosen: Chosen) -> None:
    """Take out activations' Q and DQ with no integer operator at either end."""
    sweep(model)
    useless: dict[str, tuple[str, ...]] = {}
    for node in model.graph:
        source = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        if source is None or constant_type(source) is not None:
            continue
        behind = [reader for reader, _place in readers(node.outputs[0])]
        if any(reader.op_type != "DequantizeLinear" for reader in behind):
            continue
        ends = [reader for dequantizer in behind for reader, _place in readers(dequantizer.outputs[0])]
        maker = source.producer()
        if not any(_is_integer(end, chosen) for end in (*ends, *([maker] if maker is not None else []))):
            useless[str(source.name)] = ()
    if useless:
        remove_quantize_pairs(model, useless)


def _is_integer(node: ir.Node, chosen: Chosen) -> bool:
    """Whether the runtime makes an integer operator of this one and the Q and DQ around it."""
    if chosen(node):
        return False
    if node.op_type in _WEIGHTED:
        return all(made_by(value, "DequantizeLinear") is not None for value in node.inputs[:2])
    results = [reader.op_type for value in node.outputs for reader, _place in readers(value)]
    return (
        node.op_type in _WITH_KERNELS
        and made_by(given(node, 0), "DequantizeLinear") is not None
        and bool(results)
        and all(kind == "QuantizeLinear" for kind in results)
    )
