"""ONNX files: reading them safely, their facts in a JSON-able form, and the few edits every rewrite needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]  # it ships no types

from unlag.errors import UsageError
from unlag.model.normal_form import normal_form


def read_model(path: Path) -> ir.Model:
    """Read an ONNX file in its normal form; external weights stay on disk until they are used.

    Raises:
        UsageError: missing, empty, truncated or not ONNX, with external data outside the model's folder, or with
            something in it that can't be read.
    """
    if path.is_dir() or not path.exists():
        what = "is a folder, not a model file" if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}")
    try:
        empty = path.stat().st_size == 0
        model = None if empty else _load(path)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from error
    except Exception as error:  # protobuf and onnx_ir raise many kinds on bytes that are no model
        unknown = _not_implemented(error)
        what = f"holds what unlag can't read: {unknown}" if unknown else "is not an ONNX model, or it is truncated"
        raise UsageError(f"{path} {what}") from error
    if model is None:
        raise UsageError(f"{path} is empty")
    if not model.opset_imports and not len(model.graph):
        raise UsageError(f"{path} is not an ONNX model, or it is truncated")
    _check_external_data(model, path)
    return model


def _load(path: Path) -> ir.Model:
    proto = onnx.load(path, format="protobuf", load_external_data=False)
    model = ir.serde.deserialize_model(normal_form(proto))
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _not_implemented(error: BaseException) -> str:
    """What the library says that it can't do; nothing where the bytes are wrong."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NotImplementedError):
        cause = cause.__cause__
    return str(cause).split(". ")[0] if cause is not None else ""


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


def opset_of(model: ir.Model) -> int:
    """Version of the standard operators that the model is written in."""
    return model.opset_imports.get("", 1)


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
        UsageError: the folder can't be written, the disk is full, or what stays in the file is above 2 GB.
    """
    total_bytes = sum(t.nbytes for t in _tensors(model))
    _lift_ir_version(model)
    try:
        _load_attributes(model)
        if total_bytes > PROTOBUF_LIMIT_BYTES:
            ir.save(model, path, external_data=f"{path.name}.data")
        else:
            # External tensors name files beside the model that they came from.
            ir.save(ir.external_data.load_to_model(model), path)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from error
    except (ValueError, EncodeError) as error:
        path.unlink(missing_ok=True)
        raise UsageError(f"{path} can't be written: too large for one protobuf file") from error


def _lift_ir_version(model: ir.Model) -> None:
    """Until version 3 of the format every initializer was an input; the edits here add some that are none."""
    if model.ir_version < _FREE_INITIALIZERS and not all(v.is_graph_input() for v in model.graph.initializers.values()):
        model.ir_version = _FREE_INITIALIZERS


def _load_attributes(model: ir.Model) -> None:
    """Take external tensors of attributes into the file; onnx_ir moves only those of initializers."""
    for node in model.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if isinstance(attribute, ir.Attr) and attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if isinstance(tensor, ir.ExternalTensor):
                    held = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
                    node.attributes[name] = ir.AttrTensor(name, held)


_FREE_INITIALIZERS = 4

PROTOBUF_LIMIT_BYTES = 1_900_000_000
"""Protobuf messages end at 2 GiB; the rest is room for the graph itself."""
