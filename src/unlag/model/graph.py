"""ONNX files: reading them safely, their facts in a JSON-able form, and the few edits every rewrite needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.errors import UsageError
from unlag.model.workload import Dimension, Signature, TensorInfo

SMALL = 64
"""Constants of up to this many elements keep their values in the facts: shapes, axes, scales, epsilons."""

Attribute = int | float | str | list[int | float | str]


class Node(msgspec.Struct, frozen=True):
    """One node of a graph; an absent optional input is ``""``. ``depth`` counts the If/Loop bodies around it."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]
    depth: int = 0


class Constant(msgspec.Struct, frozen=True):
    """An initializer or a Constant node's tensor."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    values: tuple[float, ...] | None
    """The elements, where there are at most ``SMALL``."""
    peak_share: float | None
    """For 8-bit matrices: the median over the last axis of each column's largest absolute code, as a share of
    the largest code possible (distance from 128 for unsigned). Near 1 when every column uses its range."""


class GraphFacts(msgspec.Struct, frozen=True, tag=True):
    """What a graph says about itself, without its weights."""

    opset: dict[str, int]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: tuple[Node, ...]
    constants: dict[str, Constant]
    types: dict[str, str]
    """Element type of each tensor that the file declares or that can be inferred."""


class GraphIndex:
    """Look-ups over facts: who makes a tensor, who reads it."""

    def __init__(self, facts: GraphFacts) -> None:
        self.facts = facts
        self.producers = {out: node for node in facts.nodes for out in node.outputs if out}
        self.consumers: dict[str, list[Node]] = {}
        for node in facts.nodes:
            for name in node.inputs:
                self.consumers.setdefault(name, []).append(node)

    def producer(self, name: str) -> Node | None:
        """The node whose output the tensor is; nothing for inputs and constants."""
        return self.producers.get(name)

    def constant(self, name: str) -> Constant | None:
        """The constant of that name."""
        return self.facts.constants.get(name)

    def scalar(self, name: str) -> float | None:
        """The value of a one-element constant."""
        constant = self.constant(name)
        if constant is None or constant.values is None or len(constant.values) != 1:
            return None
        return constant.values[0]


def read_model(path: Path) -> ir.Model:
    """Read an ONNX file; weights stay on disk until they are used.

    Raises:
        UsageError: missing, empty, truncated or not ONNX, or with external data outside the model's folder.
    """
    if path.is_dir() or not path.exists():
        what = "is a folder, not a model file" if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}")
    try:
        empty = path.stat().st_size == 0
        model = None if empty else ir.load(path)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf and onnx_ir raise many kinds on bytes that are no model
        raise UsageError(f"{path} is not an ONNX model, or it is truncated") from error
    if model is None:
        raise UsageError(f"{path} is empty")
    if not model.opset_imports and not len(model.graph):
        raise UsageError(f"{path} is not an ONNX model, or it is truncated")
    _check_external_data(model, path)
    return model


def external_files(model: ir.Model) -> set[str]:
    """Locations of external data that the model's tensors name."""
    return {str(t.location) for t in _tensors(model) if isinstance(t, ir.ExternalTensor)}


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    graphs = [model.graph, *model.graph.subgraphs(), *model.functions.values()]
    for graph in graphs:
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if isinstance(attribute, ir.Attr) and attribute.type == ir.AttributeType.TENSOR:
                    yield attribute.as_tensor()


def _check_external_data(model: ir.Model, path: Path) -> None:
    """Refuse weights outside the model's folder: a model is untrusted and may name any file."""
    folder = path.parent.resolve()
    needed: dict[Path, int] = {}
    for tensor in _tensors(model):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        target = (folder / str(tensor.location)).resolve()
        if not target.is_relative_to(folder):
            raise UsageError(f"{path} names external data outside its own folder: {str(tensor.location)!r}")
        needed[target] = max(needed.get(target, 0), (tensor.offset or 0) + (tensor.length or 0))
    for target, end in needed.items():
        if not target.is_file():
            raise UsageError(f"{path} needs external data that is missing: {target.name!r}")
        size_bytes = target.stat().st_size
        if size_bytes < end:
            raise UsageError(
                f"the external data of {path} is truncated: {target.name!r} has {size_bytes} of {end} bytes"
            )


def size_on_disk_bytes(model: ir.Model, path: Path) -> int:
    """Bytes of the model's file and of its external data."""
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in external_files(model))


def dtype_name(dtype: ir.DataType | None) -> str:
    """Give numpy's name for an ONNX element type, or ``unknown``."""
    if dtype is None:
        return "unknown"
    try:
        return np.dtype(dtype.numpy()).name
    except (TypeError, ValueError):
        return dtype.name.lower()


def _dimension(size: int | ir.SymbolicDim) -> Dimension:
    return size if isinstance(size, int) else size.value


def tensor_info(value: ir.Value) -> TensorInfo:
    """Name, element type and shape of a graph's value."""
    shape = None if value.shape is None else tuple(_dimension(d) for d in value.shape)
    return TensorInfo(name=str(value.name), dtype=dtype_name(value.dtype), shape=shape)


def signature_of(model: ir.Model) -> Signature:
    """Inputs that a caller must give (initializers listed as inputs left out), and outputs."""
    graph = model.graph
    inputs = tuple(tensor_info(v) for v in graph.inputs if v.name not in graph.initializers)
    return Signature(inputs=inputs, outputs=tuple(tensor_info(v) for v in graph.outputs))


def embedding_limits(model: ir.Model) -> dict[str, int]:
    """For each integer input that indexes a constant table by Gather: how many rows the table has."""
    limits: dict[str, int] = {}
    for value in model.graph.inputs:
        for node, index in value.uses():
            if node.op_type != "Gather" or index != 1:
                continue
            rows = _table_rows(node.inputs[0])
            if rows is not None:
                limits[str(value.name)] = min(limits.get(str(value.name), rows), rows)
    return limits


def _table_rows(table: ir.Value | None) -> int | None:
    """Rows of a constant table, looked for through the nodes that dequantize or cast it."""
    while table is not None:
        tensor = ir.convenience.get_const_tensor(table)
        if tensor is not None:
            rows = tensor.shape[0] if len(tensor.shape) else None
            return rows if isinstance(rows, int) else None
        maker = table.producer()
        table = maker.inputs[0] if maker is not None and maker.inputs else None
    return None


def facts_of(model: ir.Model) -> GraphFacts:
    """Facts of a model, Constant nodes counted as constants."""
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    types: dict[str, str] = {}
    _collect(model.graph, 0, nodes, constants, types)
    signature = signature_of(model)
    return GraphFacts(
        opset=dict(model.opset_imports),
        inputs=signature.inputs,
        outputs=signature.outputs,
        nodes=tuple(nodes),
        constants=constants,
        types=types,
    )


def _collect(
    graph: ir.Graph, depth: int, nodes: list[Node], constants: dict[str, Constant], types: dict[str, str]
) -> None:
    for name, value in graph.initializers.items():
        if value.const_value is not None:
            constants[name] = _constant_facts(value.const_value)
    for node in graph:
        for tensor in (*node.inputs, *node.outputs):
            if tensor is not None and tensor.name and tensor.dtype is not None:
                types[tensor.name] = dtype_name(tensor.dtype)
        if node.op_type == "Constant" and (held := ir.convenience.get_const_tensor(node.outputs[0])) is not None:
            constants[str(node.outputs[0].name)] = _constant_facts(held)
            continue
        nodes.append(_node_facts(node, depth))
        for attribute in node.attributes.values():
            if isinstance(attribute, ir.Attr) and attribute.type == ir.AttributeType.GRAPH:
                _collect(attribute.as_graph(), depth + 1, nodes, constants, types)


def _node_facts(node: ir.Node, depth: int) -> Node:
    attributes: dict[str, Attribute] = {}
    for name, attribute in node.attributes.items():
        if not isinstance(attribute, ir.Attr):
            continue
        value = attribute.value
        if isinstance(value, (int, float, str)):
            attributes[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, str)) for v in value):
            attributes[name] = list(value)
    return Node(
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        inputs=tuple("" if v is None else str(v.name) for v in node.inputs),
        outputs=tuple(str(v.name) for v in node.outputs),
        attributes=attributes,
        depth=depth,
    )


def _constant_facts(tensor: ir.TensorProtocol) -> Constant:
    shape = tuple(int(d) for d in tensor.shape.numpy())
    dtype = dtype_name(tensor.dtype)
    count = math.prod(shape)
    values = None
    if count <= SMALL and tensor.dtype != ir.DataType.STRING:
        values = tuple(float(v) for v in np.asarray(tensor.numpy()).astype(np.float64).ravel())
    peak = _peak_share(tensor.numpy()) if dtype in ("int8", "uint8") and len(shape) >= 2 and count > SMALL else None
    return Constant(dtype=dtype, shape=shape, size_bytes=tensor.nbytes, values=values, peak_share=peak)


def _peak_share(codes: npt.NDArray[np.generic]) -> float:
    wide = codes.astype(np.int16).reshape(-1, codes.shape[-1])
    centered = wide - 128 if codes.dtype == np.uint8 else wide
    return float(np.median(np.abs(centered).max(axis=0)) / 127)


def constant_array(value: ir.Value | None) -> npt.NDArray[np.generic] | None:
    """The array of a constant value (initializer or Constant node), or nothing."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def add_constant(graph: ir.Graph, array: npt.NDArray[np.generic], name: str) -> ir.Value:
    """Register a new initializer; a number is added to the name where it is taken."""
    unique, number = name, 1
    while unique in graph.initializers:
        number += 1
        unique = f"{name}.{number}"
    value = ir.Value(name=unique, const_value=ir.tensor(array, name=unique))
    value.shape = ir.Shape(array.shape)
    value.type = ir.TensorType(value.const_value.dtype)  # type: ignore[union-attr]  # set right above
    graph.register_initializer(value)
    return value


def insert_node(  # noqa: PLR0913 - a node has these parts
    before: ir.Node,
    op_type: str,
    inputs: list[ir.Value | None],
    *,
    name: str,
    domain: str = "",
    attributes: Mapping[str, int | float | str | list[int] | list[float]] | None = None,
) -> ir.Value:
    """Put a new one-output node in front of ``before``; hands out its output."""
    node = ir.node(op_type, inputs, dict(attributes or {}), domain=domain, name=name)
    node.outputs[0].name = f"{name}.out"
    graph = before.graph
    if graph is None:
        raise ValueError(f"{before.name} belongs to no graph")
    graph.insert_before(before, node)
    return node.outputs[0]


def replace_output(old: ir.Value, new: ir.Value) -> None:
    """Let every reader of ``old`` read ``new``; a graph output keeps its name, type and shape."""
    graph = old.producer().graph if old.producer() is not None else None  # type: ignore[union-attr]  # checked in the same line
    if graph is not None and old.is_graph_output():
        name = old.name
        old.name = f"{name}.before"
        new.name = name
        new.type = old.type or new.type
        new.shape = new.shape if old.shape is None else old.shape
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new
    old.replace_all_uses_with(new)


def sweep(model: ir.Model) -> None:
    """Drop nodes and initializers that nothing reads any more, and sort the rest."""
    graph = model.graph
    for node in reversed(list(graph)):
        if not any(out.uses() or out.is_graph_output() for out in node.outputs):
            graph.remove(node, safe=True)
    values = graph.initializers.items()
    unused = [n for n, v in values if not v.uses() and not v.is_graph_output() and not v.is_graph_input()]
    for name in unused:
        graph.initializers.pop(name)
    graph.sort()


def save_model(model: ir.Model, path: Path) -> None:
    """Write a model in one file; weights go beside it where one protobuf file can't hold them (2 GB).

    Raises:
        UsageError: the folder can't be written or the disk is full.
    """
    total_bytes = sum(t.nbytes for t in _tensors(model))
    try:
        if total_bytes > PROTOBUF_LIMIT_BYTES:
            ir.save(model, path, external_data=f"{path.name}.data")
        else:
            # External tensors name files beside the model that they came from.
            ir.save(ir.external_data.load_to_model(model), path)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from error


PROTOBUF_LIMIT_BYTES = 1_900_000_000
"""Protobuf messages end at 2 GiB; the rest is room for the graph itself."""
