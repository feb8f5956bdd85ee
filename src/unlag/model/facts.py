"""Facts of an ONNX graph in a JSON-able form: what a diagnosis reads instead of the model."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.workload import Dimension, Signature, TensorInfo

SMALL = 64
"""Constants of up to this many elements keep their values in the facts: shapes, axes, scales, epsilons."""

SAMPLED_ELEMENTS = 1_000_000
"""Larger constants are looked at in ``SAMPLED_CHUNKS`` pieces spread over them: 2 GB need not be read whole."""
SAMPLED_CHUNKS = 16

LOOKED_THROUGH = 50_000_000
"""Larger constants are never read whole; of 8-bit matrices every n-th row is looked at, up to about so many codes."""

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
    zero_share: float | None = None
    """Share of elements that are zero, for tensors of numbers above ``SMALL`` elements."""
    subnormal_share: float | None = None
    """Share of elements that are subnormal in float32 (0 < |x| < 1.18e-38), for float32 above ``SMALL`` elements."""
    abs_max: float | None = None
    """Largest absolute value, for tensors of numbers above ``SMALL`` elements."""
    zero_slices: tuple[int, ...] | None = None
    """How many slices along each axis are all zero, for float tensors of two axes and more, above ``SMALL`` and
    up to ``LOOKED_THROUGH`` elements."""


class GraphFacts(msgspec.Struct, frozen=True, tag=True):
    """What a graph says about itself, without its weights."""

    opset: dict[str, int]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: tuple[Node, ...]
    constants: dict[str, Constant]
    types: dict[str, str]
    """Element type of each tensor that the file declares or that can be inferred."""
    listed_inputs: tuple[str, ...] = ()
    """Initializers that are graph inputs too, so that a caller may override them."""
    ir_version: int | None = None
    """Below 4, every initializer must be listed as an input, and is a constant all the same."""


class GraphIndex:
    """Look-ups over facts: who makes a tensor, who reads it."""

    def __init__(self, facts: GraphFacts) -> None:
        self.facts = facts
        self.producers = {out: node for node in facts.nodes for out in node.outputs if out}
        self.consumers: dict[str, list[Node]] = {}
        for node in facts.nodes:
            for name in filter(None, node.inputs):
                self.consumers.setdefault(name, []).append(node)

    def producer(self, name: str) -> Node | None:
        """The node whose output the tensor is; nothing for inputs and constants."""
        return self.producers.get(name)

    def constant(self, name: str) -> Constant | None:
        """The constant of that name."""
        return self.facts.constants.get(name)

    def stored(self, name: str) -> npt.NDArray[np.generic] | None:  # noqa: ARG002 - facts hold no weights
        """The array of a constant whose values the facts leave out; an index that has the model at hand knows it."""
        return None

    def sizes(self, name: str) -> tuple[int | None, ...] | None:  # noqa: ARG002 - facts hold no inner shapes
        """The shape of a tensor, as far as it can be told; an index that has the model at hand infers it."""
        return None

    def scalar(self, name: str) -> float | None:
        """The value of a one-element constant."""
        constant = self.constant(name)
        if constant is None or constant.values is None or len(constant.values) != 1:
            return None
        return constant.values[0]


def dtype_name(dtype: ir.DataType | None) -> str:
    """Give numpy's name for an ONNX element type, or ``unknown``."""
    if dtype is None:
        return "unknown"
    if dtype == ir.DataType.STRING:
        return "string"
    try:
        return np.dtype(dtype.numpy()).name
    except (TypeError, ValueError):
        return dtype.name.lower()


def _dimension(size: int | ir.SymbolicDim) -> Dimension:
    return size if isinstance(size, int) else size.value


def tensor_info(value: ir.Value) -> TensorInfo:
    """Name, element type and shape of a graph's value."""
    shape = None if value.shape is None else tuple(_dimension(d) for d in value.shape)
    kind = value.type.elem_type if isinstance(value.type, ir.OptionalType) else value.type
    dtype = "sequence" if isinstance(kind, ir.SequenceType) else dtype_name(value.dtype)
    return TensorInfo(name=str(value.name), dtype=dtype, shape=shape)


def signature_of(model: ir.Model) -> Signature:
    """Inputs that a caller must give (initializers listed as inputs left out), and outputs."""
    graph = model.graph
    inputs = tuple(tensor_info(v) for v in graph.inputs if v.name not in graph.initializers)
    return Signature(inputs=inputs, outputs=tuple(tensor_info(v) for v in graph.outputs))


def facts_of(model: ir.Model) -> GraphFacts:
    """Facts of a model, Constant nodes counted as constants."""
    collected = _Collected()
    collected.walk(model.graph, 0)
    signature = signature_of(model)
    return GraphFacts(
        opset=dict(model.opset_imports),
        inputs=signature.inputs,
        outputs=signature.outputs,
        nodes=tuple(collected.nodes),
        constants=collected.constants,
        types=collected.types,
        listed_inputs=tuple(str(v.name) for v in model.graph.inputs if v.name in model.graph.initializers),
        ir_version=model.ir_version,
    )


class _Collected:
    """Facts of a graph and of the bodies in it; a name that two bodies use is told apart by a number."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.types: dict[str, str] = {}
        self._names: dict[ir.Value, str] = {}
        self._taken: set[str] = set()

    def walk(self, graph: ir.Graph, depth: int) -> None:
        """Add what the graph holds; its own values are named before those of its bodies."""
        for value in (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)):
            self._name(value)
        for value in graph.initializers.values():
            if value.const_value is not None:
                self.constants[self._name(value)] = _constant_facts(value.const_value)
        for node in graph:
            for tensor in (*node.inputs, *node.outputs):
                if tensor is not None and tensor.name and tensor.dtype is not None:
                    self.types[self._name(tensor)] = dtype_name(tensor.dtype)
            if node.op_type == "Constant" and (held := ir.convenience.get_const_tensor(node.outputs[0])) is not None:
                self.constants[self._name(node.outputs[0])] = _constant_facts(held)
                continue
            self.nodes.append(self._node(node, depth))
            for attribute in node.attributes.values():
                for body in _bodies(attribute):
                    self.walk(body, depth + 1)

    def _name(self, value: ir.Value | None) -> str:
        if value is None or not value.name:
            return ""
        if value not in self._names:
            name, number = value.name, 1
            while name in self._taken:
                number += 1
                name = f"{value.name}#{number}"
            self._names[value] = name
            self._taken.add(name)
        return self._names[value]

    def _node(self, node: ir.Node, depth: int) -> Node:
        return Node(
            name=node.name or "",
            op_type=node.op_type,
            domain=node.domain,
            inputs=tuple(self._name(v) for v in node.inputs),
            outputs=tuple(self._name(v) for v in node.outputs),
            attributes=_attributes(node),
            depth=depth,
        )


def _bodies(attribute: ir.Attr) -> tuple[ir.Graph, ...]:
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else ()


def _attributes(node: ir.Node) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    for name, attribute in node.attributes.items():
        if not isinstance(attribute, ir.Attr):
            continue
        value = attribute.value
        if isinstance(value, (int, float, str)):
            attributes[name] = value
        elif isinstance(value, ir.TensorProtocol) and value.size <= SMALL and value.dtype != ir.DataType.STRING:
            attributes[name] = list(_finite_numbers(value))
        elif isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, str)) for v in value):
            attributes[name] = list(value)
    return attributes


def _constant_facts(tensor: ir.TensorProtocol) -> Constant:
    shape = tuple(int(d) for d in tensor.shape.numpy())
    dtype = dtype_name(tensor.dtype)
    count = math.prod(shape)
    if tensor.dtype == ir.DataType.STRING:
        return Constant(dtype=dtype, shape=shape, size_bytes=0, values=None, peak_share=None)
    if count <= SMALL:
        values = _finite_numbers(tensor)
        return Constant(dtype=dtype, shape=shape, size_bytes=tensor.nbytes, values=values, peak_share=None)
    array = tensor.numpy()
    sample = _sample(array)
    magnitudes = np.abs(sample.astype(np.float32))
    tiny = np.finfo(np.float32).tiny
    zero_share = float(np.mean(magnitudes == 0))
    fits = count <= LOOKED_THROUGH
    return Constant(
        dtype=dtype,
        shape=shape,
        size_bytes=tensor.nbytes,
        values=None,
        peak_share=_peak_share(array) if dtype in {"int8", "uint8"} and len(shape) >= 2 else None,
        zero_share=zero_share,
        subnormal_share=float(np.mean((magnitudes > 0) & (magnitudes < tiny))) if dtype == "float32" else None,
        abs_max=float(np.minimum(magnitudes.max(), np.finfo(np.float32).max)),
        zero_slices=_zero_slices(array, zero_share) if array.dtype.kind == "f" and len(shape) >= 2 and fits else None,
    )


def _finite_numbers(tensor: ir.TensorProtocol) -> tuple[float, ...]:
    """All elements; an infinite one as the largest number of its sign, since facts are JSON."""
    largest = np.finfo(np.float64).max
    return tuple(np.clip(np.asarray(tensor.numpy()).astype(np.float64).ravel(), -largest, largest).tolist())


def _zero_slices(array: npt.NDArray[np.generic], zero_share: float) -> tuple[int, ...]:
    """All-zero slices along each axis; a tensor whose sample has hardly a zero is not looked through."""
    if zero_share * max(array.shape) < 0.5:
        return (0,) * array.ndim
    used = array != 0
    axes = range(array.ndim)
    return tuple(int((~used.any(axis=tuple(a for a in axes if a != axis))).sum()) for axis in axes)


def _sample(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """All elements of a constant, or chunks of neighbors spread over a large one."""
    flat = array.reshape(-1)
    if flat.size <= SAMPLED_ELEMENTS:
        return flat
    length = SAMPLED_ELEMENTS // SAMPLED_CHUNKS
    starts = np.linspace(0, flat.size - length, SAMPLED_CHUNKS).astype(np.int64)
    return np.concatenate([flat[start : start + length] for start in starts])


def _peak_share(codes: npt.NDArray[np.generic]) -> float:
    rows = codes.reshape(-1, codes.shape[-1])
    step = max(1, rows.size // LOOKED_THROUGH)
    middle = 128 if codes.dtype == np.uint8 else 0
    high, low = (getattr(rows[::step], edge)(axis=0).astype(np.int16) - middle for edge in ("max", "min"))
    return float(np.median(np.maximum(high, -low)) / 127)
