"""Float16 taken back to float32 in a whole graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from unlag.model.graph import constant_array, insert_node, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.neighbors import readers

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT

_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})
"""Integer attributes that hold an element type."""


def widen_float16(model: ir.Model) -> int:
    """float16(x) ≈ x: every float16 value is computed as float32 instead, and casts between the two fall away.

    Constants are widened without loss; a DequantizeLinear follows its scale. Graph inputs and outputs keep
    their type, with one Cast at the border. A graph that calls model-local functions is left alone.
    """
    graph = model.graph
    computed = [v for v, dtype in element_types(model).items() if dtype == _HALF and _is_computed(v, graph)]
    constants = [v for v in _initializers(graph) if v.const_value is not None and v.const_value.dtype == _HALF]
    if model.functions or not (computed or constants):
        return 0
    inputs, outputs = _borders(graph)
    for value in constants:
        _widen_constant(value)
    changed = len(constants) + len(inputs) + sum(_widen_node(node, graph) for node in list(graph.all_nodes()))
    for value in [
        *computed,
        *(v for node in graph.all_nodes() for v in node.outputs if v.dtype == _HALF and _is_computed(v, graph)),
        *(v for body in graph.subgraphs() for v in body.inputs if v.dtype == _HALF),
    ]:
        value.type = ir.TensorType(_SINGLE)
    for value in inputs:
        _widen_input(graph, value)
    changed += _drop_casts(model)
    for value in outputs:
        _narrow_output(graph, value)
    sweep(model)
    return changed


def _is_computed(value: ir.Value, graph: ir.Graph) -> bool:
    """Made by a node, other than by the Cast that gives a float16 output its type."""
    node = value.producer()
    return node is not None and not _is_border(node, graph)


def _borders(graph: ir.Graph) -> tuple[list[ir.Value], list[ir.Value]]:
    """Inputs and outputs that are float16 and are not there for a border's Cast already."""
    inputs = [v for v in graph.inputs if v.dtype == _HALF and v.const_value is None and not _only_cast_reads(v)]
    return inputs, [v for v in graph.outputs if v.dtype == _HALF]


def _only_cast_reads(value: ir.Value) -> bool:
    return all(_is_cast(node, _SINGLE) for node, _position in readers(value))


def _is_cast(node: ir.Node, to: ir.DataType) -> bool:
    return node.op_type == "Cast" and not node.domain and node.attributes.get_int("to") == to


def _initializers(graph: ir.Graph) -> Iterator[ir.Value]:
    for part in (graph, *graph.subgraphs()):
        yield from part.initializers.values()


def _widen_constant(value: ir.Value) -> None:
    array = constant_array(value)
    if array is not None:
        value.const_value = ir.tensor(array.astype(np.float32), name=value.name)
        value.type = ir.TensorType(_SINGLE)


def _widen_node(node: ir.Node, graph: ir.Graph) -> bool:
    """Rewrite the attributes that ask for float16; the last Cast in front of a float16 output is a border and stays."""
    changed = False
    if _is_border(node, graph):
        return False
    for name, attribute in list(node.attributes.items()):
        if not isinstance(attribute, ir.Attr):
            continue
        if name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.as_int() == _HALF:
            node.attributes[name] = ir.AttrInt64(name, int(_SINGLE))
            changed = True
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _HALF:
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(attribute.as_tensor().numpy().astype(np.float32)))
            changed = True
    return changed


def _is_border(node: ir.Node, graph: ir.Graph) -> bool:
    """Whether the node only gives an output of the main graph, not of a body, its type."""
    result = node.outputs[0] if node.graph is graph else None
    return result is not None and _is_cast(node, _HALF) and result.is_graph_output() and not result.uses()


def _widen_input(graph: ir.Graph, value: ir.Value) -> None:
    """Cast a float16 input once, in front of everything that reads it."""
    narrow = [(node, position) for node, position in readers(value) if not _is_cast(node, _SINGLE)]
    nodes = {node for node, _position in narrow}
    first = next(node for node in graph if node in nodes or _holds_any(node, nodes))
    wide = insert_node(first, "Cast", [value], name=f"{value.name}.widened", attributes={"to": int(_SINGLE)})
    wide.type, wide.shape = ir.TensorType(_SINGLE), value.shape
    for node, position in narrow:
        node.replace_input_with(position, wide)


def _holds_any(node: ir.Node, nodes: set[ir.Node]) -> bool:
    """Whether one of the nodes is in a body of this one."""
    bodies = [
        a.as_graph() for a in node.attributes.values() if isinstance(a, ir.Attr) and a.type == ir.AttributeType.GRAPH
    ]
    return any(not nodes.isdisjoint(body.all_nodes()) for body in bodies)


def _drop_casts(model: ir.Model) -> int:
    """Take out the Casts to float32 of what is float32 by now."""
    dropped = 0
    types = element_types(model)
    for node in list(model.graph):
        source = node.inputs[0] if node.inputs else None
        if not _is_cast(node, _SINGLE) or source is None or types.get(source) != _SINGLE:
            continue
        if node.outputs[0].is_graph_output() and (source.producer() is None or source.is_graph_output()):
            continue
        replace_output(node.outputs[0], source)
        dropped += 1
    return dropped


def _narrow_output(graph: ir.Graph, value: ir.Value) -> None:
    """Give a float16 output its type back by one Cast behind what is computed in float32."""
    node = value.producer()
    if node is None or _is_border(node, graph):
        value.type = ir.TensorType(_HALF)
        return
    name, index = str(value.name), graph.outputs.index(value)
    value.name, value.type = f"{name}.wide", ir.TensorType(_SINGLE)
    cast = ir.node("Cast", [value], {"to": int(_HALF)}, name=f"{name}.narrowed")
    graph.insert_after(node, cast)
    narrow = cast.outputs[0]
    narrow.name, narrow.type, narrow.shape = name, ir.TensorType(_HALF), value.shape
    graph.outputs[index] = narrow
