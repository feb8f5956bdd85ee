"""Activations that no integer operator reads are not rounded to codes any more: all of them, wherever they go."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep
from unlag.rewrites.activation_codes import CODE_RANGES, MOVING
from unlag.rewrites.neighbors import made_by, readers
from unlag.rewrites.packed_weights import fixed_array, given, scaled
from unlag.rewrites.stored_weights import CODE_TYPES, chain_nodes, constant_type

CARRYING = MOVING | {"MaxPool", "Concat", "Pad", "Resize", "DepthToSpace", "SpaceToDepth", "Tile", "GatherElements"}
"""Operators that take codes or floats alike, and give what they take."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "BatchNormalization"})


def strip_quantization(model: ir.Model, *, had_relu: bool = True) -> int:
    """Let DQ(Q(x)) be x, with any moving of the codes in between; counts the quantized tensors.

    Where no code stands for a negative number, a quantizer may have left out a Relu: it is put back behind convolutions
    and products, unless the model is known to have ``had_relu`` nowhere. Tables of codes whose rows are dequantized
    after the look-up become float ones. Codes that something else reads, or that the graph takes in or gives out, stay.
    """
    stripped = sum(_widen_table(model.graph, node) for node in list(model.graph) if node.op_type == "Gather")
    for node in list(model.graph):
        if node.op_type == "QuantizeLinear" and node.graph is not None and constant_type(node.inputs[0]) is None:
            stripped += _strip(model.graph, node, had_relu=had_relu)
    for node in list(model.graph):
        if node.op_type == "DequantizeLinear":
            _fold_constant(model.graph, node)
    sweep(model)
    return stripped


def _widen_table(graph: ir.Graph, node: ir.Node) -> bool:
    """Gather(codes, rows), then DequantizeLinear with one scale, becomes Gather(floats, rows)."""
    codes = fixed_array(node.inputs[0])
    behind = [reader for reader, _place in readers(node.outputs[0])]
    if codes is None or constant_type(node.inputs[0]) not in CODE_TYPES or node.outputs[0].is_graph_output():
        return False
    if not behind or any(reader.op_type != "DequantizeLinear" for reader in behind):
        return False
    parts = {(reader.inputs[1], given(reader, 2)) for reader in behind}
    scale, zero = parts.pop()
    factor, offset = fixed_array(scale), None if zero is None else fixed_array(zero)
    if parts or factor is None or factor.size != 1 or (zero is not None and offset is None):
        return False
    table = scaled(codes, factor, offset, 0)
    if table is None:
        return False
    value = node.inputs[0]
    node.replace_input_with(0, add_constant(graph, table, f"{value.name if value is not None else node.name}.float"))
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    for reader in behind:
        _replace(reader.outputs[0], node.outputs[0])
    return True


def _strip(graph: ir.Graph, quantizer: ir.Node, *, had_relu: bool) -> bool:
    """Let the float tensor flow where its codes did."""
    moved = _moved(quantizer)
    source = quantizer.inputs[0]
    if moved is None or source is None:
        return False
    ends = [
        reader
        for value in (quantizer.outputs[0], *(out for node in moved for out in node.outputs))
        for reader, place in readers(value)
        if reader.op_type == "DequantizeLinear" and place == 0
    ]
    floats = _cut(quantizer, source) if had_relu and _may_have_cut(quantizer) else source
    for node in moved:
        _pad_with_floats(graph, node, quantizer)
        for value in node.outputs:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    quantizer.outputs[0].replace_all_uses_with(floats)
    for end in ends:
        read = end.inputs[0]
        if read is not None:
            _replace(end.outputs[0], read)
    return True


def _moved(quantizer: ir.Node) -> list[ir.Node] | None:
    """Nodes between the codes and all their DequantizeLinear; nothing where anything else reads them."""
    waiting: list[ir.Value] = [quantizer.outputs[0]]
    found: list[ir.Node] = []
    while waiting:
        value = waiting.pop()
        if value.is_graph_output():
            return None
        for reader, place in readers(value):
            if reader.op_type == "DequantizeLinear" and place == 0:
                continue
            if reader.op_type not in CARRYING or reader.domain or not _carries_only(reader, value):
                return None
            if reader not in found:
                found.append(reader)
                waiting += reader.outputs
    return found


def _carries_only(node: ir.Node, value: ir.Value) -> bool:
    """Whether nothing else that it carries comes from somewhere where it stays codes: Concat of several."""
    return node.op_type != "Concat" or all(v is value for v in node.inputs)


def _may_have_cut(quantizer: ir.Node) -> bool:
    """Whether the codes hide negative numbers that are there."""
    zero = fixed_array(given(quantizer, 2)) if given(quantizer, 2) is not None else np.zeros(1, np.uint8)
    if zero is None or zero.dtype.name not in CODE_RANGES or not _takes_relu(quantizer.inputs[0]):
        return False
    return bool((zero == CODE_RANGES[zero.dtype.name][0]).all())


def _takes_relu(value: ir.Value | None) -> bool:
    """Whether the tensor is of a kind that a Relu follows: masks and scores of attention must keep their negatives."""
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "Add":
        return any(_is_product(_behind_codes(read)) for read in maker.inputs)
    return _is_product(value)


def _is_product(value: ir.Value | None) -> bool:
    """Whether a convolution or a product by a constant makes the tensor."""
    if made_by(value, *_WEIGHTED) is not None:
        return True
    maker = made_by(value, "MatMul")
    return maker is not None and maker.inputs[1] is not None and chain_nodes(maker.inputs[1]) is not None


def _behind_codes(value: ir.Value | None) -> ir.Value | None:
    """The tensor that was quantized, where the value is what came back."""
    while (node := made_by(value, "DequantizeLinear", "QuantizeLinear")) is not None:
        value = node.inputs[0]
    return value


def _cut(quantizer: ir.Node, source: ir.Value) -> ir.Value:
    made = insert_node(quantizer, "Relu", [source], name=f"{source.name}.relu")
    made.type, made.shape = ir.TensorType(ir.DataType.FLOAT), source.shape
    return made


def _pad_with_floats(graph: ir.Graph, node: ir.Node, quantizer: ir.Node) -> None:
    """What Pad fills in is a code, too."""
    filler = given(node, 2) if node.op_type == "Pad" else None
    code, scale = constant_array(filler), fixed_array(quantizer.inputs[1])
    if filler is None or code is None or scale is None:
        return
    zero = fixed_array(given(quantizer, 2))
    value = scaled(code, scale, zero, 0)
    if value is not None:
        node.replace_input_with(2, add_constant(graph, value.reshape(code.shape), f"{filler.name}.float"))


def _replace(old: ir.Value, new: ir.Value) -> None:
    if old.is_graph_output() and (new.producer() is None or new.is_graph_output()):
        node = old.producer()
        if node is not None:
            new = insert_node(node, "Identity", [new], name=f"{old.name}.same")
            new.type, new.shape = ir.TensorType(ir.DataType.FLOAT), old.shape
    replace_output(old, new)


def _fold_constant(graph: ir.Graph, node: ir.Node) -> None:
    """Biases and other small constants that are dequantized at every run."""
    codes, scale = fixed_array(node.inputs[0]), fixed_array(node.inputs[1])
    zero = None if given(node, 2) is None else fixed_array(given(node, 2))
    if codes is None or scale is None or scale.dtype != np.float32 or (given(node, 2) is not None and zero is None):
        return
    axis = node.attributes.get_int("axis", 1) % max(1, codes.ndim)
    array = scaled(codes, scale, zero, axis)
    output = node.outputs[0]
    if array is None or output.is_graph_output() or bool(node.attributes.get_int("block_size", 0)):
        return
    output.replace_all_uses_with(add_constant(graph, array.reshape(codes.shape), f"{output.name}.folded"))
