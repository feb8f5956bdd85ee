import tempfile
from functools import cache
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from planting import Pair, tiny_bert


def plant() -> Pair:
    return Pair(tiny_bert(), {}, _quantized(reduce_range=False), {})


def twin() -> Pair:
    """Weights of seven bits."""
    return Pair(tiny_bert(), {}, _quantized(reduce_range=True), {})


@cache
def _quantized(*, reduce_range: bool) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "float.onnx", Path(name) / "int8.onnx"
        onnx.save(tiny_bert(), source)
        quantize_dynamic(
            source,
            target,
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
        )
        return onnx.load(target)
