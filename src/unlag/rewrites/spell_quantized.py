"""Operators on codes with fixed scales, spelled as float operators between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.graph import add_constant, insert_node, replace_output, sweep
from unlag.rewrites.packed_weights import fixed_array, given, scaled

CONTRIB = "com.microsoft"
Values = list[ir.Value | None]


def spell_quantized(model: ir.Model) -> int:
    """f_q(x_q, s, z) becomes Q(f(DQ(x_q))) for the operators on codes of ONNX and of ONNX Runtime; counts them.

    Taken are QLinearConv and QLinearMatMul, QLinear elementwise operators, poolings, Concat, Where and Softmax, QGemm,
    QAttention, and QEmbedLayerNormalization. Weights and biases become float constants, or are dequantized where they
    are read. What is stored channels last stays.
    """
    spelled = 0
    for node in list(model.graph):
        spell = _FORMS.get(node.op_type)
        if spell is not None and node.domain in {"", CONTRIB} and not node.attributes.get_int("channels_last", 0):
            spelled += spell(model.graph, node)
    if spelled:
        sweep(model)
    return spelled


def _name(node: ir.Node) -> str:
    return str(node.outputs[0].name)


def _floats(node: ir.Node, index: int) -> ir.Value:
    """What the codes at an input stand for; scale and zero point are the inputs behind them."""
    return _from_codes(node, node.inputs[index], node.inputs[index + 1], given(node, index + 2), str(index))


def _from_codes(
    node: ir.Node, value: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None, part: str
) -> ir.Value:
    inputs: Values = [value, scale, *([] if zero is None else [zero])]
    made = insert_node(node, "DequantizeLinear", inputs, name=f"{_name(node)}.{part}.dequantize")
    made.type = ir.TensorType(ir.DataType.FLOAT)
    return made


def _put(  # noqa: PLR0913 - a node and the codes of its result
    node: ir.Node, op_type: str, inputs: Values, scale: ir.Value | None, zero: ir.Value | None, *, domain: str = ""
) -> bool:
    """The float operator in the node's place; its result is quantized where there is a scale for it."""
    attributes = {k: a for k, a in node.attributes.items() if isinstance(a, ir.Attr) and k not in _OWN_ATTRIBUTES}
    made = ir.node(op_type, inputs, attributes=attributes, domain=domain, name=f"{_name(node)}.float")
    graph, output = node.graph, node.outputs[0]
    if not isinstance(graph, ir.Graph):
        return False
    result = made.outputs[0]
    result.name, result.type = f"{_name(node)}.float.out", ir.TensorType(ir.DataType.FLOAT)
    result.shape = output.shape
    graph.insert_before(node, made)
    if scale is not None:
        codes: Values = [result, scale, *([] if zero is None else [zero])]
        result = insert_node(node, "QuantizeLinear", codes, name=f"{_name(node)}.quantize")
        result.type, result.shape = output.type, output.shape
    replace_output(output, result)
    return True


_OWN_ATTRIBUTES = frozenset({"channels_last", "opset"})


def _by_groups(op_type: str, operands: int) -> Callable[[ir.Graph, ir.Node], bool]:
    """(x, s, z) for each operand, then scale and zero point of the result."""

    def spell(_graph: ir.Graph, node: ir.Node) -> bool:
        inputs: Values = [_floats(node, 3 * k) for k in range(operands)]
        return _put(node, op_type, inputs, node.inputs[3 * operands], given(node, 3 * operands + 1))

    return spell


def _concat(_graph: ir.Graph, node: ir.Node) -> bool:
    inputs: Values = [_floats(node, k) for k in range(2, len(node.inputs), 3)]
    return _put(node, "Concat", inputs, node.inputs[0], node.inputs[1])


def _where(_graph: ir.Graph, node: ir.Node) -> bool:
    inputs: Values = [node.inputs[0], _floats(node, 1), _floats(node, 4)]
    return _put(node, "Where", inputs, node.inputs[7], given(node, 8))


def _convolution(graph: ir.Graph, node: ir.Node) -> bool:
    """QLinearConv(x, s, z, W, s, z, s_y, z_y, bias), the bias int32 with the product of both scales."""
    weight = _weight(node, 3, 4, 5, 0)
    bias = _bias(node, 8)
    if weight is None or (bias is None and given(node, 8) is not None):
        return False
    inputs: Values = [_floats(node, 0), add_constant(graph, weight, f"{_name(node)}.weight.float")]
    if bias is not None:
        inputs.append(add_constant(graph, bias, f"{_name(node)}.bias.float"))
    return _put(node, "Conv", inputs, node.inputs[6], node.inputs[7])


def _bias(node: ir.Node, index: int) -> npt.NDArray[np.float32] | None:
    """int32 codes that have the scale of the activation (input 1) times that of the weight (input 4)."""
    codes, left, right = (fixed_array(given(node, place)) for place in (index, 1, 4))
    if codes is None or left is None or right is None:
        return None
    scale = left.astype(np.float32).reshape(-1) * right.astype(np.float32).reshape(-1)
    return (codes.astype(np.float32) * scale).astype(np.float32)


def _gemm(graph: ir.Graph, node: ir.Node) -> bool:
    """QGemm(A, s, z, B, s, z, C, s_y, z_y); C is int32 with the product of both scales."""
    transposed = bool(node.attributes.get_int("transB", 0))
    weight = _weight(node, 3, 4, 5, 0 if transposed else 1)
    if weight is None:
        return False
    inputs: Values = [_floats(node, 0), add_constant(graph, weight, f"{_name(node)}.weight.float")]
    bias = _bias(node, 6)
    if bias is not None:
        inputs.append(add_constant(graph, bias, f"{_name(node)}.bias.float"))
    elif given(node, 6) is not None:
        return False
    return _put(node, "Gemm", inputs, given(node, 7), given(node, 8))


def _attention(graph: ir.Graph, node: ir.Node) -> bool:
    """QAttention(x, W, bias, s_x, s_W, mask, z_x, z_W, past) becomes Attention(x, W, bias, mask, past)."""
    weight = _weight(node, 1, 4, 7, 1)
    if weight is None:
        return False
    inputs: Values = [
        _from_codes(node, node.inputs[0], node.inputs[3], given(node, 6), "x"),
        add_constant(graph, weight, f"{_name(node)}.weight.float"),
        node.inputs[2],
        given(node, 5),
        given(node, 8),
    ]
    while inputs[-1] is None:
        inputs.pop()
    return len(node.outputs) == 1 and _put(node, "Attention", inputs, None, None, domain=CONTRIB)


def _embedding(graph: ir.Graph, node: ir.Node) -> bool:
    """QEmbedLayerNormalization has ids, five coded constants, a mask, and then five scales and five zero points."""
    constants = [_weight(node, 2 + k, 8 + k, 13 + k, -1) for k in range(5)]
    absent = [given(node, 2 + k) is None for k in range(5)]
    if any(array is None and not gone for array, gone in zip(constants, absent, strict=True)):
        return False
    made = [
        None if array is None else add_constant(graph, array, f"{_name(node)}.{k}.float")
        for k, array in enumerate(constants)
    ]
    attributes = {k: a for k, a in node.attributes.items() if isinstance(a, ir.Attr)}
    inputs: Values = [node.inputs[0], given(node, 1), *made, given(node, 7)]
    while inputs[-1] is None:
        inputs.pop()
    new = ir.node(
        "EmbedLayerNormalization", inputs, attributes=attributes, domain=CONTRIB, num_outputs=len(node.outputs),
        name=f"{_name(node)}.float",
    )  # fmt: skip
    graph.insert_before(node, new)
    for old, value in zip(node.outputs, new.outputs, strict=True):
        value.name, value.type, value.shape = f"{old.name}.float", old.type, old.shape
        replace_output(old, value)
    return True


def _weight(node: ir.Node, codes: int, scale: int, zero: int, axis: int) -> npt.NDArray[np.float32] | None:
    array, factor, offset = (fixed_array(given(node, index)) for index in (codes, scale, zero))
    if array is None or factor is None or (given(node, zero) is not None and offset is None):
        return None
    return scaled(array, factor, offset, axis % max(1, array.ndim))


_FORMS: dict[str, Callable[[ir.Graph, ir.Node], bool]] = {
    "QLinearConv": _convolution,
    "QLinearMatMul": _by_groups("MatMul", 2),
    "QLinearAdd": _by_groups("Add", 2),
    "QLinearMul": _by_groups("Mul", 2),
    "QLinearSigmoid": _by_groups("Sigmoid", 1),
    "QLinearLeakyRelu": _by_groups("LeakyRelu", 1),
    "QLinearSoftmax": _by_groups("Softmax", 1),
    "QLinearReduceMean": _by_groups("ReduceMean", 1),
    "QLinearAveragePool": _by_groups("AveragePool", 1),
    "QLinearGlobalAveragePool": _by_groups("GlobalAveragePool", 1),
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QGemm": _gemm,
    "QAttention": _attention,
    "QEmbedLayerNormalization": _embedding,
}
