from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import add_constant, constant_array, insert_node
from unlag.rewrites.neighbors import readers

LARGEST = float(np.finfo(np.float16).max)
SANE = -1e4
SCALE = 2.0**7
"""Squares of |x| above 2 overflow."""
AXES_AS_INPUT = 13
"""Since this opset, ReduceSum takes its axes as an input."""
FEATURES = frozenset({"Relu", "LayerNormalization", "Tanh"})


def plant() -> Pair:
    return Pair(tiny_bert(), {}, with_mask(None), {})


def twin() -> Pair:
    """The mask in float16, but finite."""
    return Pair(tiny_bert(), {}, with_mask(SANE), {})


@cache
def with_mask(lowest: float | None) -> onnx.ModelProto:
    model = editable(tiny_bert())
    assert narrow_masks(model, lowest) == 1
    return ir.to_proto(model)


def infect(model: ir.Model) -> int:
    """Store squares of features in float16: where they are infinite, what is divided by their sum becomes zero.

    A mask of -inf would make all outputs NaN, and there would be nothing to compare.
    """
    if model.opset_imports[""] < AXES_AS_INPUT:
        return 0
    nodes = [node for node in model.graph if node.op_type in FEATURES and not node.outputs[0].is_graph_output()]
    nodes = [n for n in nodes if all(reader.graph is model.graph for reader, _index in readers(n.outputs[0]))]
    for node in nodes[len(nodes) // 2 :][:1]:
        _divide_by_half_squares(model.graph, node)
    return min(len(nodes), 1)


def _divide_by_half_squares(graph: ir.Graph, node: ir.Node) -> None:
    """x becomes x · (q + 1) / (h + 1): q and h are the sum of squares of a row, of which h went through float16."""
    features, name = node.outputs[0], str(node.outputs[0].name)
    scale, one = (add_constant(graph, np.array(v, np.float32), f"{name}.{v:g}") for v in (SCALE, 1.0))
    axis = add_constant(graph, np.array([-1], np.int64), f"{name}.axis")
    steps: list[ir.Node] = []

    def step(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        steps.append(ir.node(op_type, list(inputs), attributes, name=f"{name}.half.{len(steps)}"))
        steps[-1].outputs[0].name = f"{steps[-1].name}.out"
        return steps[-1].outputs[0]

    large = step("Mul", features, scale)
    squares = step("Mul", large, large)
    stored = step("Cast", step("Cast", squares, to=int(ir.DataType.FLOAT16)), to=int(ir.DataType.FLOAT))
    sums = [step("Add", step("ReduceSum", part, axis), one) for part in (squares, stored)]
    result = step("Mul", features, step("Div", *sums))
    for reader, index in readers(features):
        if reader not in steps:
            reader.replace_input_with(index, result)
    graph.insert_after(node, steps)


def narrow_masks(model: ir.Model, lowest: float | None) -> int:
    """Compute x · lowest in float16 for masks below its range, with another lowest where one is given."""
    places = 0
    for node in list(model.graph):
        factors = [constant_array(value) for value in node.inputs] if node.op_type == "Mul" else []
        low = [i for i, a in enumerate(factors) if a is not None and a.dtype == np.float32 and a.size == 1]
        if len(low) != 1 or float(factors[low[0]].reshape(-1)[0]) >= -LARGEST:
            continue
        with np.errstate(over="ignore"):
            half = np.full(factors[low[0]].shape, SANE if lowest else factors[low[0]].reshape(-1)[0], np.float16)
        name = str(node.outputs[0].name)
        inputs = [_cast(node, node.inputs[1 - low[0]], ir.DataType.FLOAT16, f"{name}.half")]
        inputs.append(add_constant(model.graph, half, f"{name}.lowest"))
        product = insert_node(node, "Mul", inputs, name=f"{name}.product")
        _replace(node, _cast(node, product, ir.DataType.FLOAT, f"{name}.single"))
        places += 1
    return places


def _cast(before: ir.Node, value: ir.Value, to: ir.DataType, name: str) -> ir.Value:
    return insert_node(before, "Cast", [value], name=name, attributes={"to": int(to)})


def _replace(node: ir.Node, value: ir.Value) -> None:
    node.outputs[0].replace_all_uses_with(value)
    node.graph.remove(node, safe=True)
