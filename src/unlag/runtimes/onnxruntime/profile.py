"""What the runtime's own profiler writes, in the normal form."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from unlag.runtimes.contract import Kind, Operator, Profile

TYPES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}
"""The runtime's C++ names where they differ from numpy's."""

_OPERATORS_OF: dict[Kind, str] = {
    "gemm": """
        MatMul Gemm Conv ConvTranspose FusedMatMul FusedGemm FusedConv NhwcFusedConv Einsum LSTM GRU RNN TransposeMatMul
        MatMulInteger ConvInteger QLinearMatMul QLinearConv QGemm DynamicQuantizeMatMul MatMulIntegerToFloat MatMulNBits
        DynamicQuantizeLSTM MatMulScale""",
    "attention": """
        Attention MultiHeadAttention QAttention GroupQueryAttention PackedAttention DecoderMaskedMultiHeadAttention""",
    "normalization": """
        LayerNormalization SkipLayerNormalization EmbedLayerNormalization BatchNormalization InstanceNormalization
        GroupNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization RMSNormalization
        LpNormalization""",
    "activation": """
        Relu Gelu BiasGelu FastGelu QuickGelu Sigmoid Tanh Erf Softmax LogSoftmax HardSigmoid HardSwish LeakyRelu Elu
        PRelu Clip Softplus BiasSoftmax QLinearSoftmax QLinearSigmoid QLinearLeakyRelu""",
    "layout": """
        Transpose Reshape Concat Split Slice Squeeze Unsqueeze Flatten Expand Tile Pad DepthToSpace SpaceToDepth
        ReorderInput ReorderOutput Gather GatherElements GatherND ScatterND ScatterElements Shape""",
    "copy": "Identity MemcpyFromHost MemcpyToHost",
    "control": "If Loop Scan",
    "cast": "Cast",
    "quantize": "QuantizeLinear DynamicQuantizeLinear",
    "dequantize": "DequantizeLinear",
    "elementwise": """
        Add Sub Mul Div Pow Sqrt Where Equal Greater Less And Or Not Neg Exp Log Abs Min Max Mod ReduceMean ReduceSum
        ReduceMax IsNaN Reciprocal QLinearAdd QLinearMul Range CumSum Sin Cos""",
}
_KINDS: dict[str, Kind] = {name: kind for kind, names in _OPERATORS_OF.items() for name in names.split()}

_INTEGER_OPERATORS = frozenset({
    "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat", "QAttention", "DynamicQuantizeLSTM", "QLinearAdd", "QLinearMul",
})  # fmt: skip

_ITEM_BYTES = {
    "double": 8, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element by the runtime's C++ name; four for all others."""


def normal_form(events: list[dict[str, Any]], runs: int) -> Profile:
    """Mean times of the last ``runs`` runs without the slowest quarter; the first one is warm-up.

    One interruption must not make an operator the dearest of all.
    """
    totals = [event for event in events if event.get("name") == "model_run"][-runs:]
    starts = [event["ts"] for event in totals]
    usual = np.argsort([event["dur"] for event in totals])[: runs - runs // 4]
    nodes = (event for event in events if event.get("cat") == "Node" and event["ts"] >= starts[0])
    kernels = [event for event in nodes if str(event.get("name", "")).endswith("_kernel_time")]
    times_us: dict[str, list[float]] = {}
    first: dict[str, dict[str, Any]] = {}
    for event, own_us in zip(kernels, _own_times_us(kernels), strict=True):
        key = f"{event['args'].get('node_index', '')}:{event['name']}"
        first.setdefault(key, event)
        times_us.setdefault(key, [0.0] * runs)[bisect_right(starts, event["ts"]) - 1] += own_us
    means_us = {key: float(np.array(times)[usual].mean()) for key, times in times_us.items()}
    operators = tuple(_operator(event, means_us[key] / 1e3) for key, event in first.items())
    run_ms = float(np.mean([totals[run]["dur"] for run in usual])) / 1e3
    return Profile(operators=operators, run_ms=run_ms, runs=runs)


def _own_times_us(kernels: Sequence[dict[str, Any]]) -> list[float]:
    """Time of each event without that of events inside it: a branch or loop is recorded with all that its body does.

    A body runs on the thread of the node that holds it, so what lies within an event of its thread is part of it.
    """
    own = [float(event["dur"]) for event in kernels]
    spans = [(event.get("tid", 0), event["ts"], event["ts"] + event["dur"]) for event in kernels]
    around: list[int] = []
    # of events that begin together the longest, and of equals the one that is recorded last, holds the others
    for index in sorted(range(len(kernels)), key=lambda i: (*spans[i][:2], -spans[i][2], -i)):
        thread, begin, _ = spans[index]
        while around and not (spans[around[-1]][0] == thread and begin < spans[around[-1]][2]):
            around.pop()
        if around:
            own[around[-1]] -= kernels[index]["dur"]
        around.append(index)
    return [max(0.0, time_us) for time_us in own]


def _operator(event: dict[str, Any], time_ms: float) -> Operator:
    arguments = event["args"]
    op_type = arguments.get("op_name", "")
    inputs, outputs = arguments.get("input_type_shape", []), arguments.get("output_type_shape", [])
    return Operator(
        name=str(event["name"]).removesuffix("_kernel_time"),
        op_type=op_type,
        kind=_KINDS.get(op_type, "other"),
        precision=_precision(op_type, inputs, outputs),
        time_ms=time_ms,
        kernel=arguments.get("provider", "unknown"),
        input_shapes=_shapes(inputs),
        output_shapes=_shapes(outputs),
        moved_bytes=_moved_bytes(op_type, inputs, outputs),
    )


def _precision(op_type: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> str:
    if op_type in _INTEGER_OPERATORS:
        return "int8"
    types = [name for entry in (*outputs, *inputs) for name in entry]
    floats = [name for name in types if "float" in name or name == "double"]
    name = (floats or types or ["unknown"])[0]
    return TYPES.get(name, name)


def _moved_bytes(op_type: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> int:
    """Bytes of inputs and outputs; of a table that is looked up, only the rows that are taken."""
    touched = outputs if op_type.startswith("Gather") else inputs
    return sum(
        math.prod(shape) * _ITEM_BYTES.get(name, 4) for entry in (*touched, *outputs) for name, shape in entry.items()
    )


def _shapes(entries: list[dict[str, Any]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for entry in entries for shape in entry.values())
