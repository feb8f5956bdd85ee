"""LayerNormalization and RMS normalization spelled out in elementwise nodes and means, replaced by one operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import GraphIndex, Node, facts_of
from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.evaluate import Evaluator
from unlag.rewrites.inferred_shapes import Shape, inferred_shapes
from unlag.rewrites.known_values import fixed_facts
from unlag.rewrites.plain_view import code_values, plain_view
from unlag.rewrites.stored_weights import weight_array

_FUNCTIONS = ("LayerNormalization", "SimplifiedLayerNormalization")
_AROUND = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Max", "Clip", "Cast", "Identity"})
_REDUCING = frozenset({"ReduceMean", "ReduceSum"})
_LONGEST_PATH = 16
_MOST_NODES = 48
_LARGEST_EPSILON = 1e-2
_ROUNDING = 1e-4
"""Of the largest value; another epsilon shows on the sample's flat rows, another divisor everywhere."""


class Normalization(NamedTuple):
    """A normalization over the last axis: names of its input, its result and its constants."""

    op_type: str
    source: str
    result: str
    scale: str | None
    shift: str | None
    width: int
    epsilon: float
    axis: int
    """As the file has it: −1, or the last axis of values whose rank is one more."""


def fuse_layer_norm(model: ir.Model) -> int:
    """(x − mean) / √(variance + ε) · γ + β becomes LayerNormalization, x / √(mean of x² + ε) · γ its simple form.

    How it is spelled does not matter: the piece of graph around the root is run on sample values and compared with
    the function. Codes in the middle do not hide it; what was rounded to them is not rounded any more.
    Below opset 17 the operator is one that onnxruntime adds to the standard ones, under the same name.
    """
    written = fixed_facts(facts_of(model))
    facts = plain_view(written)
    index = GraphIndex(facts)
    types = element_types(model)
    constants = model.graph.initializers.values()
    values = {
        str(v.name): v for v in (*model.graph.inputs, *constants, *(o for node in model.graph for o in node.outputs))
    }
    typed = {name for name, v in values.items() if types.get(v, ir.DataType.FLOAT) == ir.DataType.FLOAT}
    floats = frozenset(typed - code_values(written))
    nodes = [node for node in facts.nodes if node.depth == 0]
    found = [n for node in nodes if (n := find_normalization(index, node, floats)) is not None]
    if not found:
        return 0
    shapes = inferred_shapes(model)
    fused = sum(_is_last(norm, shapes) and _fuse(model.graph, norm, values) for norm in found)
    if fused:
        sweep(model)
    return fused


def _is_last(norm: Normalization, shapes: Mapping[str, Shape]) -> bool:
    rank = len(shapes[norm.source]) if norm.source in shapes else None
    return norm.axis == -1 or (rank is not None and norm.axis == rank - 1)


def find_normalization(index: GraphIndex, node: Node, floats: frozenset[str] | None = None) -> Normalization | None:
    """The normalization around a square root; nothing if the node is no root, or the root of something else.

    ``floats`` are the values that really hold floats, where the index takes codes for floats.
    """
    if node.domain or not _is_root(index, node):
        return None
    for source in _sources(index, node.inputs[0]):
        if floats is not None and source not in floats:
            continue
        best = None
        for result in _results(index, node.outputs[0]):
            if floats is None or result in floats:
                best = _match(index, source, result) or best
        if best is not None:
            return best
    return None


def _is_root(index: GraphIndex, node: Node) -> bool:
    if node.op_type == "Pow":
        return index.scalar(node.inputs[1]) in {0.5, -0.5}
    return node.op_type == "Sqrt"


def _sources(index: GraphIndex, name: str) -> list[str]:
    """Values in front of the root that may be what is normalized, the farthest first."""
    found: list[str] = []
    waiting = [name]
    for _step in range(4 * _LONGEST_PATH):
        if not waiting:
            break
        node = index.producer(waiting.pop(0))
        if node is None or node.domain or node.op_type not in _AROUND | _REDUCING:
            continue
        data = [i for i in node.inputs if i and index.constant(i) is None and i not in found]
        found += data
        waiting += data
    return list(reversed(found))


def _results(index: GraphIndex, name: str) -> Iterator[str]:
    """Values behind the root, as long as there is one reader."""
    for _step in range(_LONGEST_PATH):
        readers = index.consumers.get(name, [])
        if len(readers) != 1 or readers[0].domain or readers[0].op_type not in _AROUND:
            return
        name = readers[0].outputs[0]
        yield name


def _piece(index: GraphIndex, source: str, result: str) -> list[Node] | None:
    """Nodes between source and result; nothing where something else comes in."""
    nodes: dict[str, Node] = {}
    waiting = [result]
    while waiting:
        name = waiting.pop()
        node = index.producer(name)
        if name == source or name in nodes or not name or index.constant(name) is not None:
            continue
        if node is None or node.domain or node.op_type not in _AROUND | _REDUCING or len(nodes) > _MOST_NODES:
            return None
        nodes[name] = node
        waiting += node.inputs
    return list(nodes.values())


def _match(index: GraphIndex, source: str, result: str) -> Normalization | None:
    piece = _piece(index, source, result)
    axis = None if piece is None else _reduced_axis(index, piece)
    if piece is None or axis is None:
        return None
    names = dict.fromkeys(name for node in piece for name in node.inputs if index.constant(name) is not None)
    vectors = [name for name in names if _width(index, name) > 1]
    widths = {_width(index, name) for name in vectors}
    if len(widths) != 1 or len(vectors) > 2:
        return None
    width = widths.pop()
    scalars = [v for name in names if (v := index.scalar(name)) is not None and 0 <= v < _LARGEST_EPSILON]
    rank = max(axis + 1, 2, *(len(index.facts.constants[name].shape) for name in vectors))
    samples = _samples(width, rank)
    fed = {name: np.cos(np.arange(width) * (2.0 + i)) + 1.5 for i, name in enumerate(vectors)}
    shaped = {name: fed[name].reshape(index.facts.constants[name].shape) for name in vectors}
    value = Evaluator(index, {source: samples, **shaped}).value(result)
    if value is None or value.shape != samples.shape:
        return None
    for scale, shift in _roles(vectors):
        row, offset = (1.0 if scale is None else fed[scale]), (0.0 if shift is None else fed[shift])
        for op_type, epsilon in product(_FUNCTIONS if shift is None else _FUNCTIONS[:1], scalars):
            wanted = _reference(op_type, samples, epsilon) * row + offset
            if float(np.abs(value.astype(np.float64) - wanted).max()) < _ROUNDING * float(np.abs(wanted).max()):
                return Normalization(op_type, source, result, scale, shift, width, epsilon, axis)
    return None


def _roles(vectors: list[str]) -> list[tuple[str | None, str | None]]:
    if len(vectors) == 1:
        return [(vectors[0], None), (None, vectors[0])]
    return [(vectors[0], vectors[1]), (vectors[1], vectors[0])]


def _width(index: GraphIndex, name: str) -> int:
    """Elements of a float constant that lie along the last axis; zero for other constants."""
    constant = index.facts.constants[name]
    is_row = bool(constant.shape) and all(size == 1 for size in constant.shape[:-1])
    return constant.shape[-1] if is_row and constant.dtype == "float32" else 0


def _reduced_axis(index: GraphIndex, piece: list[Node]) -> int | None:
    """The one axis that all means of the piece are taken over."""
    found: set[float] = set()
    for node in piece:
        if node.op_type not in _REDUCING:
            continue
        listed = node.attributes.get("axes")
        constant = index.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = listed if isinstance(listed, list) else (constant.values if constant is not None else None)
        if axes is None or len(axes) != 1 or isinstance(axes[0], str) or not node.attributes.get("keepdims", 1):
            return None
        found.add(axes[0])
    return int(found.pop()) if len(found) == 1 else None


def _samples(width: int, rank: int) -> npt.NDArray[np.float64]:
    """Rows of random numbers, of large and of very small spread, around means that are not zero."""
    rows = np.random.default_rng(0).standard_normal((4, width))
    rows = rows * np.array([[1.0], [3.0], [3e-3], [3e-4]]) + np.array([[0.5], [-1.0], [0.01], [0.0]])
    shaped: npt.NDArray[np.float64] = rows.reshape((4,) + (1,) * (rank - 2) + (width,))
    return shaped


def _reference(op_type: str, x: npt.NDArray[np.float64], epsilon: float) -> npt.NDArray[np.float64]:
    centered = x - x.mean(-1, keepdims=True) if op_type == "LayerNormalization" else x
    return np.asarray(centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon))


def _fuse(graph: ir.Graph, norm: Normalization, values: Mapping[str, ir.Value]) -> bool:
    source, output = values[norm.source], values[norm.result]
    last = output.producer()
    rows = [_array(values, name, norm.width) for name in (norm.scale, norm.shift) if name is not None]
    if last is None or any(row is None for row in rows):
        return False
    inputs: list[ir.Value | None] = [source, _row(graph, values, norm.scale, norm.width, f"{output.name}.scale")]
    if norm.shift is not None:
        inputs.append(_row(graph, values, norm.shift, norm.width, f"{output.name}.shift"))
    attributes: dict[str, int | float | str | list[int] | list[float]] = {"axis": -1, "epsilon": norm.epsilon}
    name = f"{last.name or output.name}.fused"
    fused = insert_node(last, norm.op_type, inputs, name=name, attributes=attributes)
    fused.type, fused.shape = ir.TensorType(ir.DataType.FLOAT), output.shape or source.shape
    replace_output(output, fused)
    return True


def _array(values: Mapping[str, ir.Value], name: str, width: int) -> npt.NDArray[np.generic] | None:
    """A constant along the last axis, dequantized where it is stored as codes."""
    array = weight_array(values[name]) if name in values else None
    return array.reshape(width) if array is not None and array.size == width and array.dtype == np.float32 else None


def _row(graph: ir.Graph, values: Mapping[str, ir.Value], name: str | None, width: int, new: str) -> ir.Value:
    """The constant of that name with its one axis; ones where there is none."""
    if name is None:
        return add_constant(graph, np.ones(width, np.float32), new)
    held, array = constant_array(values[name]), _array(values, name, width)
    if held is not None and held.ndim == 1:
        return values[name]
    if array is None:
        raise ValueError(f"{name} is no constant")
    return add_constant(graph, array, f"{name}.row")
