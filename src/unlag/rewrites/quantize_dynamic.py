"""Dynamic INT8: weights stored as integers, activations quantized at every run, by ONNX Runtime's own quantizer."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx

from unlag.rewrites.library_quantizer import library_quantizer

OPERATORS = ("MatMul", "Attention", "Conv", "LSTM", "Gather", "EmbedLayerNormalization")
"""What the quantizer has a dynamic form for. Transposes of codes are left out: no operator here reads codes."""


def quantize_dynamic(  # noqa: PLR0913 - what the quantizer can be told
    source: Path,
    target: Path,
    *,
    nodes: Collection[str],
    per_channel: bool,
    reduce_range: bool = False,
    unsigned: bool = False,
) -> None:
    """Y = x·W becomes scale_x · scale_W · (x_u8 · W_s8), with x's scale taken from each run's own values.

    Args:
        source: the float model.
        target: where the quantized one goes.
        nodes: names of the nodes whose weights become integers; tables that a Gather reads among them.
        per_channel: a scale for each column of a weight, and not one for all of it.
        reduce_range: keep weights to 7 bits, which a CPU without int8 dot products needs: its 16-bit sums saturate.
        unsigned: codes of weights go from 0 to 255, with a zero point.

    Raises:
        UsageError: the quantizer can't take this model.
    """
    with library_quantizer("dynamic quantization"):
        from onnxruntime import quantization  # noqa: PLC0415 - a heavy import, for fixes only

        quantization.quantize_dynamic(
            source,
            target,
            op_types_to_quantize=list(OPERATORS),
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=quantization.QuantType.QUInt8 if unsigned else quantization.QuantType.QInt8,
            nodes_to_quantize=sorted(nodes),
            # Outputs of contributed operators have no inferred type, and everything here is float32.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": True},
        )
