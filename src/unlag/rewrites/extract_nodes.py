"""Chosen nodes of a graph as a model of their own, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from unlag.model.graph import sweep
from unlag.rewrites.stored_weights import constant_type


def computed_inputs(node: ir.Node) -> list[ir.Value]:
    """What a node reads that is not constant, each value once."""
    return list(dict.fromkeys(v for v in node.inputs if v is not None and constant_type(v) is None))


def input_name(value: ir.Value) -> str:
    """The name that a tensor has as an input of the extracted model; as an output it keeps its own."""
    return f"{value.name}.read"


def extract_nodes(model: ir.Model, nodes: Sequence[ir.Node], shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Leave only these nodes: what they read becomes inputs of the model, what they make its outputs.

    Args:
        model: is changed in place.
        nodes: of the main graph. One that needs another's result reads it as an input, too.
        shapes: of the inputs, by ``input_name``; nothing for a dimension of any size.
    """
    graph = model.graph
    made: dict[ir.Value, ir.Value] = {}
    ranks = {node: len(shapes[input_name(computed_inputs(node)[0])]) + (node.op_type == "LSTM") for node in nodes}
    for value in dict.fromkeys(v for node in nodes for v in computed_inputs(node)):
        fresh = ir.Value(name=input_name(value), type=value.type or ir.TensorType(ir.DataType.FLOAT))
        fresh.shape = ir.Shape(shapes[input_name(value)])
        made[value] = fresh
    for node in nodes:
        for index, read in enumerate(list(node.inputs)):
            if read is not None and read in made:
                node.replace_input_with(index, made[read])
    graph.inputs.clear()
    graph.inputs.extend(made.values())
    graph.outputs.clear()
    for node in nodes:
        _give_out(graph, node.outputs[0], ranks[node])
    sweep(model)


def _give_out(graph: ir.Graph, value: ir.Value, rank: int) -> None:
    """An output needs a type and a rank."""
    value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    value.shape = ir.Shape([None] * rank)
    graph.outputs.append(value)
