import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType

from planting import NEW_X86, Pair, cnn_feed, editable, tiny_cnn
from quantizing import dynamic, profiled, take_over
from unlag.runtimes.contract import Operator, Profile

MOST_INPUTS = 32
"""Of one result: products this thin cost less than quantizing and scaling around them."""


def plant() -> Pair:
    infected = editable(tiny_cnn())
    infect(infected)
    return profiled(Pair(tiny_cnn(), {}, ir.to_proto(infected), {}, feed=cnn_feed(), isa=NEW_X86))


def twin() -> Pair:
    """Recorded: all convolutions quantize their input, and are faster for it."""
    quantized = dynamic(_named(tiny_cnn()), op_types=["Conv"])
    return Pair(
        tiny_cnn(),
        {},
        quantized,
        {},
        feed=cnn_feed(),
        isa=NEW_X86,
        standard_profile=_recorded(tiny_cnn(), {"Conv": 1.0}),
        variant_profile=_recorded(quantized, {"ConvInteger": 0.5, "DynamicQuantizeLinear": 0.1, "Cast": 0.1}),
    )


def _recorded(model: onnx.ModelProto, times_ms: dict[str, float]) -> Profile:
    operators = [
        Operator(node.name, node.op_type, "gemm", "float32", times_ms.get(node.op_type, 0.05), "CPU", (), ())
        for node in model.graph.node
    ]
    return Profile(tuple(operators), sum(operator.time_ms for operator in operators), 8)


def infect(model: ir.Model) -> int:
    """What the dynamic quantizer makes of thin convolutions, depthwise ones above all; others may even gain."""
    before = _named(ir.to_proto(model))
    sizes = {w.name: int(np.prod(w.dims[1:])) for w in before.graph.initializer}
    convolutions = [node for node in before.graph.node if node.op_type == "Conv"]
    chosen = [node.name for node in convolutions if sizes.get(node.input[1], MOST_INPUTS + 1) <= MOST_INPUTS]
    if not chosen:
        return 0
    quantized = dynamic(before, op_types=["Conv"], weight_type=QuantType.QUInt8, nodes=chosen)
    take_over(model, quantized)
    return sum(node.op_type == "ConvInteger" for node in quantized.graph.node)


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which each node has a name of its own: the quantizer makes its names from them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for number, node in enumerate(copy.graph.node):
        node.name = node.name or f"{node.op_type}.{number}"
    return copy
