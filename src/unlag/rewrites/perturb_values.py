"""Noise on chosen tensors, as much on each as an input says: how much an error there matters for the outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, insert_node
from unlag.rewrites.neighbors import readers

AMOUNTS = "unlag.amounts"
"""The input that says how much noise each tensor gets, as a share of its root mean square: float32, [tensors]."""


def perturb_values(model: ir.Model, values: Sequence[ir.Value]) -> None:
    """Each value y becomes y + a·rms(y)·noise, with a from the new input and seeded normal noise."""
    graph = model.graph
    amounts = ir.Value(name=AMOUNTS, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([len(values)]))
    graph.inputs.append(amounts)
    for number, value in enumerate(values):
        _perturb(graph, value, amounts, number)


def _perturb(graph: ir.Graph, value: ir.Value, amounts: ir.Value, number: int) -> None:
    maker, name = value.producer(), f"unlag.noise.{number}"
    places = readers(value)
    if maker is None or value.is_graph_output():
        raise ValueError(f"{value.name} is not inside of the graph")
    after = next(node for node in graph if any(node is reader for reader, _place in places))

    def put(op_type: str, inputs: list[ir.Value | None], part: str, **attributes: float) -> ir.Value:
        return insert_node(after, op_type, inputs, name=f"{name}.{part}", attributes=attributes)

    index = add_constant(graph, np.array(number, np.int64), f"{name}.index")
    amount = put("Gather", [amounts, index], "amount")
    mean = put("ReduceMean", [put("Mul", [value, value], "square")], "mean", keepdims=0)
    size = put("Mul", [put("Sqrt", [mean], "rms"), amount], "size")
    noise = put("RandomNormalLike", [value], "normal", seed=float(number + 1), dtype=int(ir.DataType.FLOAT))
    noisy = put("Add", [value, put("Mul", [noise, size], "scaled")], "noisy")
    noisy.type, noisy.shape = value.type, value.shape
    for reader, place in places:
        reader.replace_input_with(place, noisy)
