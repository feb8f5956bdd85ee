"""Dynamic INT8: weights stored as integers, activations quantized at every run, by ONNX Runtime's own quantizer."""

from __future__ import annotations

import logging
from pathlib import Path

import onnx

from unlag.errors import UsageError


def quantize_dynamic(source: Path, target: Path, *, per_channel: bool, reduce_range: bool) -> None:
    """Y = x·W becomes scale_x · scale_W · (x_u8 · W_s8), with x's scale taken from each run's own values.

    ``reduce_range`` keeps weights to 7 bits, which a CPU without int8 dot products needs: its 16-bit sums saturate.

    Raises:
        UsageError: the quantizer can't take this model.
    """
    from onnxruntime import quantization  # noqa: PLC0415 - a heavy import, for fixes only

    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # the quantizer advises on the root logger
    try:
        quantization.quantize_dynamic(
            source,
            target,
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=quantization.QuantType.QInt8,
            # Outputs of contributed operators have no inferred type, and everything here is float32.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": True},
        )
    except OSError:
        raise
    except Exception as error:  # the quantizer raises what its many parts raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"dynamic quantization does not take this model: {lines[0]}") from error
    finally:
        logger.setLevel(level)
