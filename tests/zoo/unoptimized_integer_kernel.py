import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from calibrating import calibrated, float_activations_of, insert_pair, random_feed, scale_and_zero
from planting import NEW_X86, Pair, editable
from quantizing import profiled
from unlag.model.graph import add_constant, constant_array, insert_node

FIRST_OPSET = 10
"""Of QuantizeLinear."""
KINDS = frozenset({"Softmax", "AveragePool", "MaxPool", "Conv"})
VARIANT_OPTIONS = STANDARD_OPTIONS = {"optimization": "all"}
"""With its passes off, the runtime makes no integer kernels of the pairs: that is another cause."""


def plant() -> Pair:
    """Two channels in each group."""
    return _pair(groups=32)


def twin() -> Pair:
    """The same network with dense convolutions, which have a fast integer kernel."""
    return _pair(groups=1)


def infect(model: ir.Model) -> int:
    """Q and DQ around Softmax, poolings, and convolutions in groups that are not depthwise."""
    if model.opset_imports.get("", 0) < FIRST_OPSET:
        return 0
    feed = random_feed(model)
    return 0 if feed is None else _quantize(model, lambda node: node.op_type != "Conv" or _is_grouped(node), feed)


def _pair(groups: int) -> Pair:
    model = _network(groups)
    feed = {"x": np.random.default_rng(0).standard_normal((1, 64, 40, 40)).astype(np.float32)}
    quantized = editable(model)
    _quantize(quantized, lambda _node: True, feed)
    return profiled(Pair(model, {}, ir.to_proto(quantized), {}, isa=NEW_X86, feed=feed))


def _network(groups: int, layers: int = 3) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number in range(layers):
        shape = (64, 64 // groups, 3, 3)
        array = (rng.standard_normal(shape) * np.prod(shape[1:]) ** -0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{number}"))
        attributes = {"group": groups, "pads": [1, 1, 1, 1]}
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], f"conv{number}", **attributes))
        nodes.append(helper.make_node("Sin", [f"c{number}"], [f"s{number}"], f"sin{number}"))
        last = f"s{number}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 64, 40, 40]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _is_grouped(node: ir.Node) -> bool:
    group = node.attributes.get_int("group", 1)
    weight = constant_array(node.inputs[1])
    return group > 1 and weight is not None and weight.shape[:2] != (group, 1)


def _quantize(model: ir.Model, wanted, feed: dict[str, np.ndarray]) -> int:
    inner = _float_names(model)
    chosen = [
        node
        for node in model.graph
        if node.op_type in KINDS and not node.domain and wanted(node) and len(node.outputs) == 1
        if {node.inputs[0].name, node.outputs[0].name} <= inner and not node.outputs[0].is_graph_output()
        if node.op_type != "Conv" or constant_array(node.inputs[1]) is not None
    ]
    measured = [value for node in chosen for value in (node.inputs[0], node.outputs[0])]
    spans = calibrated(model, measured, feed) if chosen else {}
    for node in chosen:
        value, result = node.inputs[0].name, node.outputs[0].name
        if node.op_type == "Conv":
            _quantize_weight(model, node)
        # Pooling keeps its codes, and with them the scale; a maximum has no other range than its input.
        pooled = node.op_type in {"MaxPool", "AveragePool"}
        insert_pair(model, node, 0, spans[value], "uint8")
        _round_result(model, node, spans[value] if pooled else spans[result])
    return len(chosen)


def _float_names(model: ir.Model) -> set[str]:
    """Float32 activations: the ones that onnx infers, and the ones that our own rules know."""
    inferred = onnx.shape_inference.infer_shapes(ir.to_proto(model)).graph
    known = [*inferred.value_info, *inferred.input]
    names = {v.name for v in known if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return names | {value.name for value in float_activations_of(model)}


def _quantize_weight(model: ir.Model, node: ir.Node) -> None:
    weight = constant_array(node.inputs[1])
    scale = np.float32(max(np.abs(weight).max(), 1e-9) / 127)
    parts = {"codes": np.rint(weight / scale).astype(np.int8), "scale": scale, "zero": np.int8(0)}
    name = node.inputs[1].name
    inputs = [add_constant(model.graph, np.asarray(part), f"{name}.{kind}") for kind, part in parts.items()]
    node.replace_input_with(1, insert_node(node, "DequantizeLinear", inputs, name=f"{name}.dequantize"))


def _round_result(model: ir.Model, node: ir.Node, span: tuple[float, float]) -> None:
    result = node.outputs[0]
    users = [(use.node, use.idx) for use in result.uses()]
    scale, zero = (
        add_constant(model.graph, part, f"{result.name}.{kind}")
        for part, kind in zip(scale_and_zero(*span, "uint8"), ("out_scale", "out_zero"), strict=True)
    )
    quantize = ir.node("QuantizeLinear", [result, scale, zero], name=f"{result.name}.out_quantize")
    back = ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero], name=f"{result.name}.out_dequantize")
    quantize.outputs[0].name, back.outputs[0].name = f"{result.name}.codes", f"{result.name}.rounded"
    model.graph.insert_after(node, [quantize, back])
    for user, index in users:
        user.replace_input_with(index, back.outputs[0])
