"""A model file's message as the rest of unlag reads it: functions inlined, sparse weights dense, names once.

Nothing here changes what the model computes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.inliner
from onnx import numpy_helper

from unlag.errors import UsageError


def normal_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every call of its own functions replaced by the function's nodes, sparse weights made dense,
    and types that only the runtime knows (maps) left for it to infer.

    Raises:
        UsageError: sparse weights in external data.
    """  # noqa: D205 - one sentence
    if model.functions:
        model = _inlined(model)
    for graph in _graphs(model.graph):
        _make_dense(graph)
        _drop_doubled(graph)
        for part in (graph.input, graph.output, graph.value_info):
            for value in part:
                if _holds_map(value.type):
                    value.ClearField("type")
    return model


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its functions; a function for another opset than the model's stays a call."""
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception:  # noqa: BLE001 - the inliner raises many kinds; its calls are opaque nodes then
        return model


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _graphs(body)


def _make_dense(graph: onnx.GraphProto) -> None:
    graph.initializer.extend(_dense(tensor, tensor.values.name) for tensor in graph.sparse_initializer)
    del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                dense = _dense(attribute.sparse_tensor, "")
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _drop_doubled(graph: onnx.GraphProto) -> None:
    """ONNX Runtime writes the constants of a body twice, as nodes and as initializers of the same names."""
    made = {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    kept = [tensor for tensor in graph.initializer if tensor.name not in made]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    if onnx.TensorProto.EXTERNAL in {sparse.values.data_location, sparse.indices.data_location}:
        raise UsageError(f"sparse weights in external data can't be read: {name!r}", hint="store them as dense ones")
    values, at = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    if at.ndim == 1:
        array.reshape(-1)[at] = values
    else:
        array[tuple(at.T)] = values
    return numpy_helper.from_array(array, name)


def _holds_map(kind: onnx.TypeProto) -> bool:
    """Whether a type is a map, or a sequence of them: what classifiers of scikit-learn give."""
    element = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
    return bool(element.HasField("map_type") or element.HasField("opaque_type"))
