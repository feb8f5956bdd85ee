"""Quantized copies of small models, made by ONNX Runtime's own quantizer or written out by hand."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType, quantize_dynamic

from planting import Pair, tiny_feed
from unlag.model.graph import add_constant, constant_array, insert_node
from unlag.model.variant import Variant
from unlag.rewrites.element_types import element_types
from unlag.runtimes.contract import Profile
from unlag.runtimes.onnxruntime import RUNTIME


def dynamic(
    model: onnx.ModelProto,
    *,
    op_types: Iterable[str],
    weight_type: QuantType = QuantType.QUInt8,
    per_channel: bool = False,
    constant_only: bool = True,
    nodes: list[str] | None = None,
) -> onnx.ModelProto:
    """What onnxruntime.quantization.quantize_dynamic makes of the model."""
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "float.onnx", Path(name) / "int8.onnx"
        onnx.save(model, source)
        logging.disable(logging.WARNING)  # the quantizer advises on the root logger
        try:
            quantize_dynamic(
                source,
                target,
                per_channel=per_channel,
                weight_type=weight_type,
                op_types_to_quantize=list(op_types),
                nodes_to_quantize=nodes,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": constant_only},
            )
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(target)


def take_over(model: ir.Model, changed: onnx.ModelProto) -> None:
    """Let the model have the graph of another one, and with it the opsets.

    Quantizers write down the shapes that they inferred, and the runtime fuses more where it knows them: a change that
    is not wanted here.
    """
    declared = {out.name for node in model.graph for out in node.outputs if out.shape is not None}
    graph = ir.from_proto(changed).graph
    for node in graph:
        for out in node.outputs:
            if out.name not in declared and not out.is_graph_output():
                out.shape = None
    model.graph = graph


def constant_products(model: ir.Model) -> list[tuple[ir.Node, np.ndarray]]:
    """MatMul nodes of the main graph by a constant [in, out] float32 matrix."""
    found = []
    for node in model.graph:
        if node.op_type == "MatMul" and not node.domain:
            array = constant_array(node.inputs[1])
            if array is not None and array.ndim == 2 and array.dtype == np.float32:
                found.append((node, array))
    return found


def dequantize_weight(node: ir.Node, codes: np.ndarray, scale: np.ndarray, axis: int | None = None) -> None:
    """Let a node read its weight, input 1, from codes through DequantizeLinear."""
    name = f"{node.inputs[1].name}.{node.outputs[0].name}"
    constants = [
        add_constant(node.graph, array, f"{name}.{part}") for array, part in ((codes, "codes"), (scale, "scale"))
    ]
    attributes = {} if axis is None else {"axis": axis}
    back = insert_node(node, "DequantizeLinear", constants, name=f"{name}.dequantize", attributes=attributes)
    node.replace_input_with(1, back)


def block_product(
    model: ir.Model,
    node: ir.Node,
    matrix: np.ndarray,
    *,
    bits: int,
    block: int = 32,
    accuracy_level: int | None = None,
) -> None:
    """Replace a MatMul by MatMulNBits with symmetric codes, rounded to nearest, one scale for ``block`` rows."""
    k, n = matrix.shape
    codes, scales = pack_blocks(matrix, bits, block)
    graph = node.graph
    name = node.inputs[1].name
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    if accuracy_level is not None:
        attributes["accuracy_level"] = accuracy_level
    inputs = [
        node.inputs[0],
        add_constant(graph, codes, f"{name}.blocks"),
        add_constant(graph, scales, f"{name}.block_scales"),
    ]
    made = ir.node("MatMulNBits", inputs, attributes, domain="com.microsoft", name=node.name)
    graph.insert_before(node, made)
    old, new = node.outputs[0], made.outputs[0]
    new.name, old.name, new.type, new.shape = old.name, f"{old.name}.old", old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    model.opset_imports.setdefault("com.microsoft", 1)


def pack_blocks(matrix: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N, blocks, block · bits / 8] around the middle code, and scales [N · blocks]."""
    k, n = matrix.shape
    blocks = -(-k // block)
    padded = np.zeros((blocks * block, n), np.float32)
    padded[:k] = matrix
    values = padded.reshape(blocks, block, n).transpose(2, 0, 1)
    middle = 1 << (bits - 1)
    scales = np.maximum(np.abs(values).max(axis=2), 1e-9).astype(np.float32) / (middle - 1)
    codes = np.clip(np.rint(values / scales[..., None]) + middle, 0, 2 * middle - 1).astype(np.uint8)
    per_byte = 8 // bits
    packed = np.zeros((n, blocks, block // per_byte), np.uint8)
    for position in range(per_byte):
        packed |= codes[..., position::per_byte] << np.uint8(position * bits)
    return packed, scales.reshape(-1)


def dynamic_product(node: ir.Node) -> None:
    """Replace a MatMul by a dynamically quantized one; a factor that is constant gets fixed codes.

    The sums are multiplied by one scale after the other, which ONNX Runtime fuses with nothing.
    """
    graph, name, result = node.graph, node.name or node.outputs[0].name, node.outputs[0]

    def put(op_type: str, inputs: list[ir.Value], part: str, count: int = 1, **attributes: int) -> ir.Node:
        made = ir.node(op_type, inputs, attributes, num_outputs=count, name=f"{name}.{part}")
        for number, value in enumerate(made.outputs):
            value.name = f"{name}.{part}.{number}"
        graph.insert_before(node, made)
        return made

    factors = []
    for value, side in zip(node.inputs, ("left", "right"), strict=True):
        array = constant_array(value)
        if array is None:
            factors.append(put("DynamicQuantizeLinear", [value], f"{side}.quantize", 3).outputs)
        else:
            scale = np.float32(max(np.abs(array).max(), 1e-9) / 127)
            parts = (np.rint(array / scale).astype(np.int8), scale, np.int8(0))
            kinds = ("codes", "scale", "zero")
            made = zip(parts, kinds, strict=True)
            factors.append([add_constant(graph, np.asarray(p), f"{name}.{side}.{k}") for p, k in made])
    (a, a_scale, a_zero), (b, b_scale, b_zero) = factors
    sums = put("MatMulInteger", [a, b, a_zero, b_zero], "integer").outputs[0]
    widened = put("Cast", [sums], "cast", to=int(ir.DataType.FLOAT)).outputs[0]
    half = put("Mul", [widened, a_scale], "scaled_left").outputs[0]
    last = put("Mul", [half, b_scale], "scaled").outputs[0]
    last.type, last.shape, last.name, result.name = result.type, result.shape, result.name, f"{name}.old"
    result.replace_all_uses_with(last, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def float_products_of(model: ir.Model) -> list[ir.Node]:
    """MatMul nodes of the main graph that surely multiply float32."""
    types = element_types(model)
    nodes = [node for node in model.graph if node.op_type == "MatMul" and not node.domain]
    return [n for n in nodes if all(types.get(v) == ir.DataType.FLOAT for v in n.inputs)]


def quiet_profile(model: onnx.ModelProto, feed: dict[str, np.ndarray], rounds: int = 6) -> Profile:
    """A real profile, of which each operator has its least time of several: other work on the machine falls out."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        onnx.save(model, path)
        profiles = [RUNTIME.profile(Variant("onnxruntime", str(path)), 1, feed, 2) for _ in range(rounds)]
    least = [
        msgspec.structs.replace(same[0], time_ms=min(operator.time_ms for operator in same))
        for same in zip(*(profile.operators for profile in profiles), strict=True)
    ]
    return Profile(tuple(least), min(profile.run_ms for profile in profiles), rounds)


def profiled(pair: Pair) -> Pair:
    """The pair with quiet profiles of both sides."""
    feed = tiny_feed() if pair.feed is None else pair.feed
    return pair._replace(
        standard_profile=quiet_profile(pair.standard, feed), variant_profile=quiet_profile(pair.variant, feed)
    )
