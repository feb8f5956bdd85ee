"""Constant weights in a graph's facts: who reads them, and what is undone to them at every run."""

from __future__ import annotations

import msgspec

from unlag.model.facts import SMALL, Constant, GraphIndex, Node

_UNDOING = frozenset({"DequantizeLinear", "Cast", "Mul", "Sub", "Transpose", "Identity", "Reshape"})
_LONGEST_CHAIN = 8

READERS = {
    "MatMul": 1,
    "FusedMatMul": 1,
    "Gemm": 1,
    "FusedGemm": 1,
    "Conv": 1,
    "FusedConv": 1,
    "ConvTranspose": 1,
    "Attention": 1,
}
"""Float operators with weights, and the input at which they read them."""

CODES = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2", "float8e4m3fn", "float8_e4m3fn", "float8_e5m2"})
"""Element types of quantized weights."""


class WeightRead(msgspec.Struct, frozen=True):
    """One constant matrix or kernel, as one node reads it."""

    reader: Node
    stored: str
    """The constant at the start of the chain."""
    constant: Constant
    chain: tuple[Node, ...]
    """Nodes between the constant and the reader, nearest to the reader first."""
    scale: str | None
    """The constant that the codes are multiplied by; nothing where the weight is stored as floats."""

    @property
    def is_dequantized(self) -> bool:
        """Whether the weight is made from codes while the graph runs."""
        return self.scale is not None and self.constant.dtype in CODES


def weight_start(index: GraphIndex, name: str) -> str | None:
    """The constant that a weight is stored in, through the nodes that undo its storage."""
    chain = _chain(index, name)
    return None if chain is None else chain[0]


def _chain(index: GraphIndex, name: str) -> tuple[str, tuple[Node, ...]] | None:
    nodes: list[Node] = []
    while len(nodes) <= _LONGEST_CHAIN:
        if index.constant(name) is not None:
            return name, tuple(nodes)
        node = index.producer(name)
        if (
            node is None
            or node.op_type not in _UNDOING
            or any(i and index.constant(i) is None for i in node.inputs[1:])
        ):
            return None
        nodes.append(node)
        name = node.inputs[0]
    return None


def weight_reads(index: GraphIndex) -> list[WeightRead]:
    """Every weight of more than a few elements that a float matrix product or convolution reads."""
    found = []
    for node in index.facts.nodes:
        position = READERS.get(node.op_type)
        if position is None or len(node.inputs) <= position:
            continue
        read = _read(index, node, node.inputs[position])
        if read is not None:
            found.append(read)
    return found


def table_reads(index: GraphIndex) -> list[WeightRead]:
    """Every table that a Gather looks rows up in; codes may be dequantized before or after the look-up."""
    found = []
    for node in index.facts.nodes:
        if node.op_type != "Gather" or node.attributes.get("axis", 0) != 0:
            continue
        read = _read(index, node, node.inputs[0])
        if read is not None and len(read.constant.shape) == 2:
            after = index.consumers.get(node.outputs[0], [])
            late = read.scale is None and len(after) == 1 and after[0].op_type == "DequantizeLinear"
            found.append(msgspec.structs.replace(read, scale=after[0].inputs[1]) if late else read)
    return found


def _read(index: GraphIndex, reader: Node, name: str) -> WeightRead | None:
    chain = _chain(index, name)
    if chain is None:
        return None
    stored, nodes = chain
    constant = index.facts.constants[stored]
    size = 1
    for dimension in constant.shape:
        size *= dimension
    if size <= SMALL:
        return None
    scale = next((n.inputs[1] for n in nodes if n.op_type in {"DequantizeLinear", "Mul"}), None)
    return WeightRead(reader=reader, stored=stored, constant=constant, chain=nodes, scale=scale)
