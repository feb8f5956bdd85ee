"""The layers of a model: nodes with a constant weight, known by names that the graph's rewrites don't change."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import SMALL
from unlag.model.graph import constant_array
from unlag.rewrites.split_gemm import is_plain_gemm
from unlag.rewrites.stored_weights import constant_type, read_weights
from unlag.stages.schemes import Kind

_PLACES: dict[str, tuple[Kind, int]] = {
    "MatMul": ("product", 1),
    "Gemm": ("product", 1),
    "Conv": ("convolution", 1),
    "Attention": ("attention", 1),
    "LSTM": ("recurrence", 1),
    "Gather": ("table", 0),
    "EmbedLayerNormalization": ("table", 2),
}
"""Kind of each operator that can be quantized, and the input at which it reads its weight."""

_RANKS: dict[Kind, frozenset[int]] = {
    "product": frozenset({2}),
    "attention": frozenset({2}),
    "convolution": frozenset({3, 4, 5}),
    "recurrence": frozenset({3}),
    "table": frozenset({2}),
}


COMPARED_ROWS = 16
MOST_PARTS = 16
"""A weight that is packed of more is another one, with some columns that look alike."""


class Layer(msgspec.Struct, frozen=True):
    """A layer without its graph."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    """Of its weight, as it is stored."""
    parts: tuple[str, ...]
    """Names of the weights that its weight is packed of; its own name where it is not packed."""

    @property
    def elements(self) -> int:
        """How many numbers the weight has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class PlacedLayer:
    """A layer in a graph."""

    layer: Layer
    node: ir.Node
    weight: ir.Value


def find_layers(model: ir.Model, standard: ir.Model) -> list[PlacedLayer]:
    """Layers of the main graph in its order: nodes that read a float32 constant of more than a few elements.

    A weight that the standard holds has the standard's name for it, whatever graph it is found in. One that is packed
    of several has all their names. What is not the standard's keeps its own.
    """
    names = _Names(standard)
    found = []
    for node in model.graph:
        weight, kind = _weight_of(node)
        if weight is not None and kind is not None:
            array = constant_array(weight)
            parts = (str(weight.name),) if array is None else names.parts_of(str(weight.name), node, array)
            shape = tuple(int(size) for size in (() if array is None else array.shape))
            found.append(PlacedLayer(Layer(parts[0], kind, shape, parts), node, weight))
    return found


def _weight_of(node: ir.Node) -> tuple[ir.Value | None, Kind | None]:
    kind, index = _PLACES.get(node.op_type, (None, 0))
    if (
        kind is None
        or len(node.inputs) <= index
        or (node.op_type == "Gather" and bool(node.attributes.get_int("axis", 0)))
    ):
        return None, None
    value = node.inputs[index]
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if value is None or tensor is None or constant_type(value) != ir.DataType.FLOAT or value.is_graph_input():
        return None, None
    if tensor.size <= SMALL or len(tensor.shape) not in _RANKS[kind]:
        return None, None
    computed = [v for v in node.inputs if v is not None and constant_type(v) is None]
    return (None, None) if not computed or not _is_supported(node) else (value, kind)


def _is_supported(node: ir.Node) -> bool:
    """Whether quantizers keep what the node computes."""
    if node.op_type == "Gemm":
        return is_plain_gemm(node)
    if node.op_type == "Attention":
        return node.domain == "com.microsoft" and "qkv_hidden_sizes" not in node.attributes
    return True


class _Names:
    """The standard's names for weights, found by the values of a matrix's columns, or of an array's first part."""

    def __init__(self, standard: ir.Model) -> None:
        self._columns: dict[tuple[int, bytes], tuple[str, int]] = {}
        """Name and number of each column, by its rows and what stands in some of them."""
        self._widths: dict[str, int] = {}
        self._arrays: dict[tuple[tuple[int, ...], bytes], str] = {}
        for weight in read_weights(standard):
            matrix = weight.matrix()
            if matrix is None or matrix.ndim != 2:
                continue
            name = str(weight.read.name)
            self._widths[name] = matrix.shape[1]
            for number, column in enumerate(_columns(matrix)):
                self._columns.setdefault((matrix.shape[0], column), (name, number))
        for name, array in _large_arrays(standard):
            self._arrays.setdefault((array.shape, _start(array)), name)

    def parts_of(self, own: str, node: ir.Node, array: npt.NDArray[np.generic]) -> tuple[str, ...]:
        """Names of the standard's weights that stand side by side here, with ``[start:stop]`` for some columns."""
        if array.ndim != 2:
            return (self._arrays.get((array.shape, _start(array)), own),)
        matrix = array.T if node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0)) else array
        places = [self._columns.get((matrix.shape[0], column)) for column in _columns(matrix)]
        parts: list[tuple[str, int, int]] = []
        for place in places:
            if place is None:
                return (own,)
            name, number = place
            if parts and parts[-1][0] == name and parts[-1][2] == number:
                parts[-1] = (name, parts[-1][1], number + 1)
            else:
                parts.append((name, number, number + 1))
        if len(parts) > MOST_PARTS:
            return (own,)
        return tuple(part_name(name, start, stop, self._widths[name]) for name, start, stop in parts)


def part_name(name: str, start: int, stop: int, width: int) -> str:
    """The name of some columns of a matrix; the matrix's own for all of them."""
    return name if (start, stop) == (0, width) else f"{name}[{start}:{stop}]"


_RANGE = re.compile(r"^(.*)\[(\d+):(\d+)\]$", re.DOTALL)


def overlap(one: str, other: str) -> bool:
    """Whether two parts of weights have columns in common."""
    (name, start, stop), (base, low, high) = _range(one), _range(other)
    return name == base and start < high and low < stop


def covers(one: str, other: str) -> bool:
    """Whether one part of a weight has all columns of the other."""
    (name, start, stop), (base, low, high) = _range(one), _range(other)
    return name == base and start <= low and high <= stop


def _range(part: str) -> tuple[str, float, float]:
    match = _RANGE.match(part)
    return (part, 0, math.inf) if match is None else (match[1], int(match[2]), int(match[3]))


def _large_arrays(model: ir.Model) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """Constants of three axes and more."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and len(tensor.shape) > 2 and tensor.size > SMALL and tensor.dtype == ir.DataType.FLOAT:
            yield str(value.name), tensor.numpy()


def _columns(matrix: npt.NDArray[np.generic]) -> list[bytes]:
    """Some of what stands in each column: enough to tell columns of real weights apart."""
    rows = np.unique(np.linspace(0, matrix.shape[0] - 1, COMPARED_ROWS).astype(int))
    sample = np.ascontiguousarray(matrix[rows].T, np.float32)
    return [column.tobytes() for column in sample]


def _start(array: npt.NDArray[np.generic]) -> bytes:
    return np.ascontiguousarray(array[0], np.float32).tobytes()
