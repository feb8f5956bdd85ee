"""Codes that an NPU computes in: ONNX Runtime's own quantizer and settings for Qualcomm's, and what these miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx

from unlag.model.workload import Feed
from unlag.rewrites.library_quantizer import library_quantizer
from unlag.rewrites.quantize_static import CalibrationFeeds

Wide = Literal["none", "sums", "all"]
"""Activations that have 16 bits: none; those around normalizations and in front of Softmax; all."""

_NORMALIZATIONS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"})
_AXIS_OF_SCALES = 13
"""The opset from which on the standard operators know a scale for each channel; the runtime's own always do."""
Overrides = dict[str, list[dict[str, Any]]]


def quantize_npu(source: Path, target: Path, feeds: Sequence[Feed], *, wide: Wide) -> bool:
    """Weights in 8 bits by channel, activations in 8 or 16, all scales fixed; false where ``wide`` changes nothing.

    ONNX Runtime's settings for this NPU (``get_qnn_qdq_config``) are taken, but for three things. Scales of
    normalizations get 8 bits without a sign when weights have scales by channel, as the NPU refuses others. Tables that
    are looked up stay in 8 bits beside activations in 16, which halves them. And of two activations in 16 bits that are
    multiplied, the second goes into 8 by itself, which the compiler does anyway, out of sight.

    Args:
        source: the float model, all sizes fixed.
        target: where the quantized one goes.
        feeds: runs for calibration, by input name; at least one.
        wide: which activations have 16 bits.

    Raises:
        UsageError: the quantizer can't take this model, or a calibration run fails.
    """
    model = onnx.load(source, load_external_data=False)
    opset = next(imported.version for imported in model.opset_import if not imported.domain)
    if wide == "sums" and not dict(_sums(model, 16)):
        return False
    with library_quantizer("quantization for the NPU"):
        from onnxruntime import quantization  # noqa: PLC0415 - a heavy import, for fixes only
        from onnxruntime.quantization.execution_providers import qnn  # noqa: PLC0415 - the same

        narrow, broad = quantization.QuantType.QUInt8, quantization.QuantType.QUInt16
        overrides: Overrides = dict(_norm_scales(model, narrow))
        if wide == "sums":
            overrides |= dict(_sums(model, broad))
        if wide == "all":
            overrides |= {**dict(_lookups(model, narrow, broad)), **dict(_second_factors(model, narrow, broad))}
        config = qnn.get_qnn_qdq_config(
            source,
            CalibrationFeeds(feeds, source),
            activation_type=broad if wide == "all" else narrow,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            init_overrides=overrides,
            add_qtype_converts=wide == "sums",
            stride=1,  # one run's tensors at a time
        )
        if opset < _AXIS_OF_SCALES:
            config.extra_options["UseQDQContribOps"] = True
        quantization.quantize(source, target, config)
    return True


def quantize_by_default(source: Path, target: Path, feeds: Sequence[Feed]) -> None:
    """What ONNX Runtime's quantizer makes of a model when it is told nothing but the inputs to calibrate with.

    Raises:
        UsageError: the quantizer can't take this model, or a calibration run fails.
    """
    with library_quantizer("quantization by default"):
        from onnxruntime import quantization  # noqa: PLC0415 - a heavy import, for fixes only

        quantization.quantize_static(
            source, target, CalibrationFeeds(feeds, source), extra_options={"CalibStridedMinMax": 1}
        )


def _initializers(model: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer}


def _norm_scales(model: onnx.ModelProto, narrow: object) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    constants = _initializers(model)
    for node in model.graph.node:
        if node.op_type in _NORMALIZATIONS and len(node.input) > 1 and node.input[1] in constants:
            yield node.input[1], [{"quant_type": narrow, "symmetric": False}]


def _sums(model: onnx.ModelProto, broad: object) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What normalizations read and give, and what a Softmax reads."""
    given = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type in _NORMALIZATIONS:
            names = [node.input[0], node.output[0]]
        elif node.op_type == "Softmax":
            names = [node.input[0]]
        else:
            continue
        yield from ((name, [{"quant_type": broad}]) for name in names if name not in given)


def _lookups(model: onnx.ModelProto, narrow: object, broad: object) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Tables of floats, and their rows that are converted once they are read."""
    floats = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in floats:
            yield node.input[0], [{"quant_type": narrow}]
            yield node.output[0], [{"quant_type": narrow, "convert": {"quant_type": broad}}]


def _second_factors(
    model: onnx.ModelProto, narrow: object, broad: object
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Activations that others are multiplied by: keys and values of attention."""
    constants = _initializers(model)
    for node in model.graph.node:
        if node.op_type == "MatMul" and not constants & set(node.input) and node.name:
            yield node.input[1], [{"quant_type": broad, "convert": {"quant_type": narrow, "recv_nodes": {node.name}}}]
