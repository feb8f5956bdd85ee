import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from planting import Pair, editable
from quantizing import dynamic, dynamic_product, float_products_of, profiled
from unlag.causes.small_dynamic_products import is_small
from unlag.model.graph import constant_array

FIRST_OPSET = 11
"""Of DynamicQuantizeLinear."""


def plant() -> Pair:
    model = layers([(16, 2048), (2048, 16)] * 3)
    infected = editable(model)
    infect(infected)
    return profiled(Pair(model, {}, ir.to_proto(infected), {}, feed=_feed(16)))


def twin() -> Pair:
    """Large products, which are worth the trouble."""
    model = layers([(1024, 1024)] * 3)
    quantized = dynamic(model, op_types=["MatMul"])
    return profiled(Pair(model, {}, quantized, {}, feed=_feed(1024), isa=("avx2", "avx512_vnni", "fma")))


def infect(model: ir.Model) -> int:
    """Quantize products of two activations, and those by small or thin weights."""
    if model.opset_imports.get("", 0) < FIRST_OPSET:
        return 0
    chosen = [node for node in float_products_of(model) if _is_target(node)]
    for node in chosen:
        dynamic_product(node)
    return len(chosen)


def _is_target(node: ir.Node) -> bool:
    arrays = [constant_array(value) for value in node.inputs]
    if arrays[1] is None:
        return arrays[0] is None
    return arrays[1].ndim == 2 and arrays[1].size >= 64 and is_small(*arrays[1].shape)


def layers(shapes: list[tuple[int, int]]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number, shape in enumerate(shapes):
        array = (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"p{number}"], f"product{number}"))
        nodes.append(helper.make_node("Tanh", [f"p{number}"], [f"t{number}"], f"activation{number}"))
        last = f"t{number}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "rows", width])
        for name, width in (("x", shapes[0][0]), (last, shapes[-1][1]))
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _feed(width: int, rows: int = 32) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, rows, width)).astype(np.float32)}
