import onnx_ir as ir
from onnxruntime.quantization import QuantType

from planting import OLD_X86, Pair, tiny_bert, tiny_feed
from quantizing import dynamic, take_over
from unlag.measure.host import read_host
from unlag.runtimes.contract import Operator, Profile


def plant() -> Pair:
    """Recorded: on the machine of the test, int8 may be fast."""
    return _pair(integer_ms=0.61)


def twin() -> Pair:
    """A CPU without the instruction, on which int8 is faster all the same."""
    return _pair(integer_ms=0.33)


def infect(model: ir.Model) -> int:
    """Dynamic int8 for all products by constant weights: a cost only where the CPU lacks the instruction."""
    if read_host().has_int8_dot_product is not False:
        return 0
    quantized = dynamic(ir.to_proto(model), op_types=["MatMul"], weight_type=QuantType.QUInt8)
    take_over(model, quantized)
    return sum(node.op_type == "MatMulInteger" for node in quantized.graph.node)


def _pair(integer_ms: float) -> Pair:
    quantized = dynamic(tiny_bert(), op_types=["MatMul"], weight_type=QuantType.QUInt8)
    return Pair(
        tiny_bert(),
        {},
        quantized,
        {},
        isa=OLD_X86,
        standard_profile=_profile("MatMul", "float32", 0.5),
        variant_profile=_profile("DynamicQuantizeMatMul", "int8", integer_ms),
        feed=tiny_feed(1, 8),
    )


def _profile(op_type: str, precision: str, time_ms: float) -> Profile:
    shapes = ((1, 128, 512), (512, 512)), ((1, 128, 512),)
    operators = [
        Operator(f"product.{number}", op_type, "gemm", precision, time_ms, "CPUExecutionProvider", *shapes)
        for number in range(6)
    ]
    return Profile(tuple(operators), 6 * time_ms + 1.0, 8)
