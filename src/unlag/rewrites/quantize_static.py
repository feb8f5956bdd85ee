"""Static INT8: activations get fixed scales from calibration runs, by ONNX Runtime's own quantizer, in QDQ form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper

from unlag.model.workload import Array, Feed
from unlag.rewrites.library_quantizer import library_quantizer

Calibration = Literal["minmax", "percentile", "entropy"]
"""How a range comes from what was seen: all of it, all but the rarest values, or what loses least information."""

PERCENTILE = 99.99
"""Share of the values inside the range, in percent."""

SCALES_BY_COLUMN = 13
"""The opset from which on DequantizeLinear takes more than one scale."""

PRODUCTS = ("MatMul", "Gemm")
BETWEEN_CONVOLUTIONS = (
    "Conv", "ConvTranspose", "MatMul", "Gemm", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Add", "Mul", "Concat",
    "MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze",
    "Split", "Slice", "Pad",
)  # fmt: skip
"""Operators that compute from codes or move them, so that a chain of convolutions need not leave them."""


def quantize_static(  # noqa: PLR0913 - a calibration has these parts
    source: Path,
    target: Path,
    feeds: Sequence[Feed],
    *,
    nodes: Collection[str],
    calibration: Calibration,
    per_channel: bool,
    reduce_range: bool = False,
    excluded: Collection[str] | None = None,
) -> None:
    """Y = x·W becomes W's codes times x's, both scales fixed; x's range is what calibration runs have shown.

    Args:
        source: the float model; an old one is lifted to the opset that it needs.
        target: where the quantized one goes.
        feeds: runs for calibration, by input name; at least one.
        nodes: names of the products that are quantized. Their results stay float32, which saves rounding them.
        calibration: how ranges come from the runs.
        per_channel: a scale for each column of a weight, and not one for all of it.
        reduce_range: keep weights to 7 bits, as for dynamic quantization.
        excluded: names of nodes that stay float. Where given, it is a convolutional net: every operator that has an
            integer kernel is quantized, results too, and ``nodes`` does not count.

    Raises:
        UsageError: the quantizer can't take this model, or a calibration run fails.
    """
    with library_quantizer("static quantization"):
        from onnxruntime import quantization  # noqa: PLC0415 - a heavy import, for fixes only

        whole = excluded is not None
        if per_channel:
            _lift(source)
        methods = quantization.CalibrationMethod
        quantization.quantize_static(
            source,
            target,
            CalibrationFeeds(feeds, source),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=list(BETWEEN_CONVOLUTIONS if whole else PRODUCTS),
            per_channel=per_channel,
            reduce_range=reduce_range,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_quantize=None if whole else sorted(nodes),
            nodes_to_exclude=sorted(excluded or ()),
            calibrate_method={
                "minmax": methods.MinMax,
                "percentile": methods.Percentile,
                "entropy": methods.Entropy,
            }[calibration],
            extra_options={
                "MatMulConstBOnly": True,
                "OpTypesToExcludeOutputQuantization": [] if whole else list(PRODUCTS),
                "CalibStridedMinMax": 1,  # one run's tensors at a time
                "CalibTensorRangeSymmetric": False,
                **({"CalibPercentile": PERCENTILE} if calibration == "percentile" else {}),
            },
        )


def _lift(path: Path) -> None:
    """Write the model in an opset that has a scale for each column."""
    model = onnx.load(path)
    if next((entry.version for entry in model.opset_import if not entry.domain), SCALES_BY_COLUMN) < SCALES_BY_COLUMN:
        onnx.save(onnx.version_converter.convert_version(model, SCALES_BY_COLUMN), path)


class CalibrationFeeds:
    """Calibration runs as the quantizer asks for them: one after the other, or a range of them."""

    def __init__(self, feeds: Sequence[Feed], model: Path) -> None:
        self._feeds = feeds
        self._types = _input_types(model)
        self._waiting = iter(range(len(feeds)))

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        """The runs that are handed out next."""
        self._waiting = iter(range(start_index, end_index))

    def get_next(self) -> dict[str, Array] | None:
        """The next run, with the inputs that the model has."""
        number = next(self._waiting, None)
        if number is None:
            return None
        feed = self._feeds[number]
        return {name: np.asarray(feed[name]).astype(kind, copy=False) for name, kind in self._types.items()}


def _input_types(path: Path) -> dict[str, np.dtype[np.generic]]:
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    return {
        value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in graph.input
        if value.name not in constants
    }
