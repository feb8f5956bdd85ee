"""Signed activation codes become unsigned ones: the same numbers, 128 codes further up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, sweep
from unlag.rewrites.activation_codes import MOVING
from unlag.rewrites.neighbors import made_by

MIDDLE_CODE = 128
"""What zero is shifted to."""
SAFE_CODE = 64
"""Two products of an unsigned code and a signed one up to this fit into 16 bits."""

_Place = tuple[int, int | None]
"""Index of codes among a node's inputs or outputs, and of their zero point among its inputs."""

_INPUTS: dict[str, tuple[_Place, ...]] = {
    "DequantizeLinear": ((0, 2),),
    "QLinearConv": ((0, 2),),
    "ConvInteger": ((0, 2),),
    "QLinearMatMul": ((0, 2), (3, 5)),
    "MatMulInteger": ((0, 2), (1, 3)),
    "MatMulIntegerToFloat": ((0, 4), (1, 5)),
    "QGemm": ((0, 2), (3, 5)),
    "QLinearAdd": ((0, 2), (3, 5)),
    "QLinearMul": ((0, 2), (3, 5)),
    "QLinearSigmoid": ((0, 2),),
    "QLinearLeakyRelu": ((0, 2),),
    "QLinearSoftmax": ((0, 2),),
    "QLinearAveragePool": ((0, 2),),
    "QLinearGlobalAveragePool": ((0, 2),),
    "MaxPool": ((0, None),),
} | dict.fromkeys(MOVING, ((0, None),))

_OUTPUTS: dict[str, tuple[_Place, ...]] = {
    "QuantizeLinear": ((0, 2),),
    "QLinearConv": ((0, 7),),
    "QLinearMatMul": ((0, 7),),
    "QGemm": ((0, 8),),
    "QLinearAdd": ((0, 7),),
    "QLinearMul": ((0, 7),),
    "QLinearSigmoid": ((0, 4),),
    "QLinearLeakyRelu": ((0, 4),),
    "QLinearSoftmax": ((0, 4),),
    "QLinearAveragePool": ((0, 4),),
    "QLinearGlobalAveragePool": ((0, 4),),
    "QLinearConcat": ((0, 1),),
    "MaxPool": ((0, None),),
}

_WEIGHTS = {"QLinearConv": (3, 5), "QLinearMatMul": (3, 5), "QGemm": (3, 5), "MatMulInteger": (1, 3)}
"""Where kernels read constant codes, with their zero point."""
_ELEMENTWISE = frozenset({"Add", "Mul"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
_BOTH_ALIKE = frozenset({"QLinearAdd", "QLinearMul", "QLinearConcat"})
"""Operators whose constants have the type of the activations."""


def shift_to_unsigned(model: ir.Model, *, weights: bool = False) -> int:
    """s·(c − z) = s·((c + 128) − (z + 128)): int8 codes and zero points of activations become uint8.

    Args:
        model: the graph; only its main graph is changed.
        weights: shift the constants of matrix products and convolutions too, where codes are beyond 64: unsigned
            times signed sums are clipped at 16 bits on a CPU without an int8 dot product.

    Groups of tensors that must have one type change together, or not at all where a node is not known here.
    Constants that are added to or multiplied with a changed activation follow it, in either notation, since kernels
    take two inputs of one type. Gives the number of activations that were changed.
    """
    signed = {value for node in model.graph for value in node.outputs if _is_signed(node, value)}
    # A mover's output is signed if its input is; the graph's order carries that through chains.
    for node in model.graph:
        if node.op_type in MOVING | {"MaxPool"} and node.inputs[0] in signed:
            signed.update(node.outputs)
    changed = {value for group in _groups(model, signed) if _can_shift(group, signed) for value in group}
    for node in list(model.graph):
        _shift_node(model.graph, node, changed, weights=weights)
        _shift_dequantized_constants(model.graph, node, changed, weights=weights)
    for value in changed:
        value.type = ir.TensorType(ir.DataType.UINT8)
    if changed:
        sweep(model)
    return len(changed)


def _is_signed(node: ir.Node, value: ir.Value) -> bool:
    for index, zero in _places(node, _OUTPUTS):
        if node.outputs[index] is value and zero is not None:
            array = constant_array(_input(node, zero))
            return array is not None and array.dtype == np.int8
    return False


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _places(node: ir.Node, table: dict[str, tuple[_Place, ...]]) -> tuple[_Place, ...]:
    if node.op_type == "QLinearConcat" and table is _INPUTS:
        return tuple((index, index + 2) for index in range(2, len(node.inputs), 3))
    if node.op_type in MOVING and table is _OUTPUTS:
        return tuple((index, None) for index in range(len(node.outputs)))
    return table.get(node.op_type, ())


def _touching(node: ir.Node, signed: set[ir.Value]) -> list[ir.Value]:
    """Signed activations that the node reads or makes."""
    tensors = (*node.inputs, *node.outputs)
    return [value for value in tensors if value is not None and value in signed]


def _groups(model: ir.Model, signed: set[ir.Value]) -> Iterator[list[ir.Value]]:
    """Signed tensors that a node ties together, in the order of the graph."""
    left = [value for node in model.graph for value in node.outputs if value in signed]
    seen: set[ir.Value] = set()
    for start in left:
        group, waiting = [], [start]
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            group.append(value)
            for node in _neighbors(value):
                waiting += _touching(node, signed)
        if group:
            yield group


def _neighbors(value: ir.Value) -> list[ir.Node]:
    producer = value.producer()
    return [*([] if producer is None else [producer]), *(use.node for use in value.uses())]


def _can_shift(group: list[ir.Value], signed: set[ir.Value]) -> bool:
    return all(
        not value.is_graph_output() and all(_is_known(node, value, signed) for node in _neighbors(value))
        for value in group
    )


def _is_known(node: ir.Node, value: ir.Value, signed: set[ir.Value]) -> bool:
    """Whether the node takes the value at places known here, and all its other activations shift with it."""
    known_inputs, known_outputs = _places(node, _INPUTS), _places(node, _OUTPUTS)
    read = [index for index, source in enumerate(node.inputs) if source is value]
    if any(index not in {place for place, _ in known_inputs} for index in read):
        return False
    others = [_input(node, index) for index, _ in known_inputs]
    outs = [node.outputs[index] for index, zero in known_outputs if zero is None or _input(node, zero) is not None]
    zeros = [_input(node, zero) for _, zero in (*known_inputs, *known_outputs) if zero is not None]
    return (
        all(other is None or other in signed or _is_code_constant(other) for other in others)
        and all(out in signed for out in outs)
        and all(zero is None or _is_code_constant(zero) for zero in zeros)
    )


def _is_code_constant(value: ir.Value) -> bool:
    array = constant_array(value)
    return array is not None and array.dtype in {np.dtype(np.int8), np.dtype(np.uint8)}


def _shift_node(graph: ir.Graph, node: ir.Node, changed: set[ir.Value], *, weights: bool) -> None:
    """Shift the zero points of the tensors that change, and the constants that must have their type."""
    touched = False
    for index, zero in _places(node, _INPUTS):
        source = _input(node, index)
        if source is not None and source in changed:
            touched = True
            _shift_zero(graph, node, zero)
    for index, zero in _places(node, _OUTPUTS):
        if node.outputs[index] in changed:
            touched = True
            _shift_zero(graph, node, zero)
    if not touched:
        return
    if node.op_type in _BOTH_ALIKE:
        for index, zero in _places(node, _INPUTS):
            _shift_codes(graph, node, index, zero)
    elif weights and node.op_type in _WEIGHTS:
        codes, zero = _WEIGHTS[node.op_type]
        array = constant_array(_input(node, codes))
        if array is not None and array.dtype == np.int8 and np.abs(array.astype(np.int16)).max() > SAFE_CODE:
            _shift_codes(graph, node, codes, zero)


def _shift_dequantized_constants(graph: ir.Graph, node: ir.Node, changed: set[ir.Value], *, weights: bool) -> None:
    """Shift the constants in QDQ form that a node reads beside an activation that changes."""
    if node.op_type not in _ELEMENTWISE and not (weights and node.op_type in _PRODUCTS):
        return
    makers = [made_by(value, "DequantizeLinear") for value in node.inputs]
    if not any(maker is not None and maker.inputs[0] in changed for maker in makers):
        return
    for maker in makers:
        array = None if maker is None else constant_array(maker.inputs[0])
        if maker is None or array is None or array.dtype != np.int8 or len(maker.outputs[0].uses()) != 1:
            continue
        if node.op_type in _ELEMENTWISE or np.abs(array.astype(np.int16)).max() > SAFE_CODE:
            _shift_codes(graph, maker, 0, 2)


def _shift_codes(graph: ir.Graph, node: ir.Node, codes: int, zero: int | None) -> None:
    source = _input(node, codes)
    array = constant_array(source)
    if source is None or array is None or array.dtype != np.int8:
        return
    node.replace_input_with(codes, add_constant(graph, _shifted(array), f"{source.name}.unsigned"))
    _shift_zero(graph, node, zero)


def _shift_zero(graph: ir.Graph, node: ir.Node, zero: int | None) -> None:
    if zero is None:
        return
    source = _input(node, zero)
    array = constant_array(source)
    if source is None or array is None:
        node.resize_inputs(max(len(node.inputs), zero + 1))
        scale = constant_array(node.inputs[1]) if node.op_type == "DequantizeLinear" else None
        shape = () if scale is None else scale.shape
        array, name = np.zeros(shape, np.int8), f"{node.name or node.outputs[0].name}.zero"
    else:
        name = f"{source.name}.unsigned"
    if array.dtype == np.int8:
        node.replace_input_with(zero, add_constant(graph, _shifted(array), name))


def _shifted(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    return (array.astype(np.int16) + MIDDLE_CODE).astype(np.uint8)
