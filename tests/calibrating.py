"""Planting quantized activations in any float model: inputs for it, what its tensors hold, and Q/DQ pairs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from quantizing import take_over
from unlag.errors import UsageError
from unlag.measure.sketch import sketch_of
from unlag.model.facts import GraphIndex, facts_of, signature_of
from unlag.model.graph import add_constant, constant_array, embedding_limits, insert_node
from unlag.model.workload import Shape, WorkloadRequest
from unlag.observe.evidence import Values
from unlag.observe.judged import seen_of
from unlag.rewrites.activation_codes import CODE_RANGES
from unlag.rewrites.activation_fit import Judgement, judge_activations
from unlag.rewrites.element_types import element_types
from unlag.rewrites.recalibrate_activations import set_scale
from unlag.workloads import random as random_workload

Feed = dict[str, np.ndarray]
Ranges = dict[str, tuple[float, float]]


def random_feed(model: ir.Model) -> Feed | None:
    """Inputs of a usual length, or of a short one where the model's positions end before; nothing if neither runs.

    A net with a window or a state of one certain size runs on neither, and random sizes would not tell its ranges.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    for sequence in (128, 16):
        try:
            feed = _drawn(model, sequence)
            session.run(None, feed)
        except (UsageError, Fail, InvalidArgument):
            continue
        return feed
    return None


def _drawn(model: ir.Model, sequence: int) -> Feed:
    request = WorkloadRequest(
        argument="",
        signature=signature_of(model),
        shape=Shape(batch=1, sequence=sequence),
        dims={},
        seed=0,
        limits=embedding_limits(model),
    )
    return dict(random_workload.load(request).feed)


def tensors_of(model: onnx.ModelProto, names: Iterable[str], feed: Feed) -> dict[str, np.ndarray]:
    """What tensors hold in one run without passes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    wanted = list(dict.fromkeys(name for name in names if name not in feed))
    if not wanted:
        return dict(feed)
    known = {output.name for output in copy.graph.output}
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted if name not in known)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {**feed, **dict(zip(wanted, session.run(wanted, feed), strict=True))}


def values_of(model: onnx.ModelProto, feed: Feed) -> Values:
    """The facts that evidence has of each tensor."""
    names = [out for node in model.graph.node for out in node.output if out and node.op_type != "Constant"]
    sketches = {name: sketch_of(array) for name, array in tensors_of(model, names, feed).items()}
    return Values({name: sketch.facts for name, sketch in sketches.items() if sketch is not None})


def calibrated(model: ir.Model, values: Iterable[ir.Value], feed: Feed) -> Ranges:
    names = [str(value.name) for value in values]
    held = tensors_of(ir.to_proto(model), names, feed)
    return {name: (float(held[name].min()), float(held[name].max())) for name in names}


def float_activations_of(model: ir.Model) -> list[ir.Value]:
    """Inner float32 tensors of the main graph, in its order."""
    types = element_types(model)
    return [
        out
        for node in model.graph
        for out in node.outputs
        if types.get(out) == ir.DataType.FLOAT and ir.convenience.get_const_tensor(out) is None and out.uses()
    ]


def products(model: ir.Model) -> list[ir.Node]:
    """MatMul nodes of an activation with a constant matrix, and Conv nodes, of the main graph.

    None before opset 13, where DequantizeLinear has no axis.
    """
    if model.opset_imports.get("", 0) < 13:
        return []
    found = []
    for node in model.graph:
        weight = constant_array(node.inputs[1]) if node.op_type in {"MatMul", "Conv"} and not node.domain else None
        is_float = weight is not None and weight.dtype == np.float32
        if is_float and weight.ndim >= 2 and ir.convenience.get_const_tensor(node.inputs[0]) is None:
            found.append(node)
    return found


def largest(nodes: Sequence[ir.Node], most: int) -> list[ir.Node]:
    """Those with the largest weights."""
    return sorted(nodes, key=lambda node: -constant_array(node.inputs[1]).size)[:most]


def is_even(array: np.ndarray) -> bool:
    """Whether 8 bits with one scale are enough: 25 dB."""
    return float(np.sqrt(np.mean(np.square(array)))) > 5 * float(array.max() - array.min()) / 255


def scale_and_zero(low: float, high: float, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    first, last = CODE_RANGES[dtype]
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / (last - first), 1e-12)
    return np.array(scale, np.float32), np.array(np.clip(round(first - low / scale), first, last), dtype)


def insert_pair(model: ir.Model, reader: ir.Node, place: int, span: tuple[float, float], dtype: str) -> None:
    """Quantize and dequantize what one node reads at one input."""
    value = reader.inputs[place]
    domain = "" if model.opset_imports.get("", 0) >= 21 or dtype in {"int8", "uint8"} else "com.microsoft"
    if domain:
        model.opset_imports.setdefault(domain, 1)
    stem = f"{value.name}.{reader.outputs[0].name}.{place}"
    scale, zero = (
        add_constant(model.graph, array, f"{stem}.{name}")
        for array, name in zip(scale_and_zero(*span, dtype), ("scale", "zero"), strict=True)
    )
    codes = insert_node(reader, "QuantizeLinear", [value, scale, zero], name=f"{stem}.quantize", domain=domain)
    back = insert_node(reader, "DequantizeLinear", [codes, scale, zero], name=f"{stem}.dequantize", domain=domain)
    reader.replace_input_with(place, back)


class _OneFeed(CalibrationDataReader):
    def __init__(self, feed: Feed) -> None:
        self.feeds = iter([feed])

    def get_next(self) -> Feed | None:
        return next(self.feeds, None)


def statically_quantized(
    model: onnx.ModelProto,
    feed: Feed,
    activations: QuantType = QuantType.QUInt8,
    form: QuantFormat = QuantFormat.QDQ,
    nodes: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """What ONNX Runtime's own static quantizer makes, weights int8 with a scale for each channel.

    All nodes are quantized where none are named; else only these, by name.
    """
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "float.onnx", Path(name) / "int8.onnx"
        onnx.save(model, source)
        logging.disable(logging.WARNING)  # the quantizer advises on the root logger
        try:
            quantize_static(
                source,
                target,
                _OneFeed(feed),
                quant_format=form,
                activation_type=activations,
                weight_type=QuantType.QInt8,
                per_channel=form == QuantFormat.QDQ,
                nodes_to_quantize=nodes,
                op_types_to_quantize=["MatMul", "Conv"] if nodes else None,
            )
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(target)


def judged(model: onnx.ModelProto, feed: Feed) -> list[Judgement]:
    return judge_activations(GraphIndex(facts_of(ir.from_proto(model))), seen_of(values_of(model, feed)))


def quantize_named_products(model: ir.Model, feed: Feed, *, rounded: bool) -> bool:
    """Quantize the products in place whose tensors 8 bits are too coarse for, or all the others; False if none."""
    for number, node in enumerate(products(model)):
        node.name = node.name or f"product.{number}"
    float_model = ir.to_proto(model)
    names = [str(node.name) for node in products(model)]
    if not names:
        return False
    everything = statically_quantized(float_model, feed, nodes=names)
    coarse = {judgement.activation.tensor for judgement in judged(everything, feed) if judgement.fault}
    chosen = [
        str(node.name)
        for node in products(model)
        if rounded == bool(coarse.intersection({node.inputs[0].name, node.outputs[0].name}))
    ]
    if chosen:
        take_over(model, statically_quantized(float_model, feed, nodes=chosen))
    return bool(chosen)


def stretch_scales(model: ir.Model, factors: Mapping[str, float]) -> int:
    """Multiply the scales of these quantized tensors, for all who use their codes."""
    chosen = [n for n in model.graph if n.op_type == "QuantizeLinear" and n.inputs[0].name in factors]
    for node in chosen:
        scale = float(constant_array(node.inputs[1]).item())
        set_scale(model.graph, node, scale * factors[node.inputs[0].name], int(constant_array(node.inputs[2]).item()))
    return len(chosen)
