"""No ``infect``: what a row loses depends on its neighbors, and a labeled workload runs it alone or with any."""

from functools import cache

import onnx
import onnx_ir as ir

from planting import Pair, editable, tiny_bert, tiny_feed
from unlag.model.graph import constant_array, insert_node

LAYERS = frozenset({"MatMul", "Gemm", "Conv"})


def plant() -> Pair:
    return Pair(tiny_bert(), {}, infected(), {}, feed=tiny_feed(8))


def twin() -> Pair:
    """The same file, run row by row."""
    return Pair(tiny_bert(), {}, infected(), {}, feed=tiny_feed(1))


@cache
def infected() -> onnx.ModelProto:
    model = editable(tiny_bert())
    round_to_batch(model)
    return ir.to_proto(model)


def round_to_batch(model: ir.Model) -> None:
    """Round what each layer with weights reads to 8 bits of the range that it has in this batch."""
    for node in list(model.graph):
        source = node.inputs[0] if node.op_type in LAYERS and not node.domain else None
        if source is None or source.producer() is None or constant_array(node.inputs[1]) is None:
            continue
        name = f"{node.outputs[0].name}.rounded"
        dynamic = ir.node("DynamicQuantizeLinear", [source], name=f"{name}.codes", num_outputs=3)
        for value, part in zip(dynamic.outputs, ("codes", "scale", "zero_point"), strict=True):
            value.name = f"{name}.{part}"
        model.graph.insert_before(node, dynamic)
        node.replace_input_with(0, insert_node(node, "DequantizeLinear", list(dynamic.outputs), name=name))
