import tempfile
from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType, quantize_dynamic

from planting import Pair, tiny_bert
from quantizing import dynamic, take_over
from unlag.measure.host import read_host


def plant() -> Pair:
    return Pair(tiny_bert(), {}, _quantized(reduce_range=False), {})


def twin() -> Pair:
    """Weights of seven bits."""
    return Pair(tiny_bert(), {}, _quantized(reduce_range=True), {})


def infect(model: ir.Model) -> int:
    """Dynamic quantization of all products with weights of eight bits; 0 where this CPU does not clip their sums."""
    if read_host().has_int8_dot_product is not False:
        return 0
    changed = dynamic(ir.to_proto(model), op_types=["MatMul"], weight_type=QuantType.QInt8, per_channel=True)
    take_over(model, changed)
    return sum(node.op_type == "MatMulInteger" for node in model.graph)


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
