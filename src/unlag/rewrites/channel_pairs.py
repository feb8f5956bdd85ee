"""Two products with only elementwise work in between, so that a channel of the first is a row of the second."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unlag.model.facts import Constant, GraphIndex, Node
from unlag.rewrites.evaluate import Evaluator

_KEEPS_ZERO = frozenset(
    {
        "Relu", "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Tanh", "Erf", "LeakyRelu", "Elu", "HardSwish", "Mish",
        "Identity", "Abs", "Neg", "Dropout", "MaxPool", "AveragePool", "GlobalAveragePool", "Selu", "Sqrt",
    }
)  # fmt: skip
"""Operators that work on each channel alone and give zero for zero."""
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Sigmoid", "HardSigmoid", "Clip", "Min", "Max"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool"})
_MOST_NODES = 16


class ChannelPair(NamedTuple):
    """A product, its elementwise successors, and the product that alone reads their result."""

    first: Node
    between: tuple[Node, ...]
    second: Node
    vectors: tuple[str, ...]
    """Constants with one element a channel: the first product's bias and those in between."""
    channels: int
    zero_stays: bool
    """A channel that the first product leaves at zero, all vectors being zero there, reaches the second as zero."""


def output_axis(node: Node) -> int:
    """The axis of a weight that runs over the channels that a product gives."""
    return 0 if node.op_type == "Conv" or node.attributes.get("transB", 0) else 1


def input_axis(node: Node) -> int:
    """The axis of a weight that runs over the channels that a product reads."""
    return 1 - output_axis(node)


def find_channel_pairs(index: GraphIndex) -> list[ChannelPair]:
    """All pairs of the main graph; weights are float32 constants that nobody else reads."""
    outputs = {info.name for info in index.facts.outputs}
    pairs = (_pair(index, node, outputs) for node in index.facts.nodes)
    return [pair for pair in pairs if pair is not None]


def _weight(index: GraphIndex, node: Node) -> Constant | None:
    if node.op_type not in {"MatMul", "Gemm", "Conv"} or node.domain or node.depth or len(node.inputs) < 2:
        return None
    constant = index.constant(node.inputs[1])
    if constant is None or constant.dtype != "float32" or node.inputs[1] in index.facts.listed_inputs:
        return None
    fits = len(constant.shape) == 2 if node.op_type != "Conv" else len(constant.shape) > 2
    plain = node.attributes.get("group", 1) == 1 and not node.attributes.get("transA", 0)
    return constant if fits and plain and len(index.consumers[node.inputs[1]]) == 1 else None


def _pair(index: GraphIndex, first: Node, outputs: set[str]) -> ChannelPair | None:
    weight = _weight(index, first)
    walked = None if weight is None else _walk(index, first.outputs[0], outputs)
    if weight is None or walked is None:
        return None
    between, second = walked
    channels = weight.shape[output_axis(first)]
    after = _weight(index, second)
    if after is None or (first.op_type == "Conv") != (second.op_type == "Conv"):
        return None
    rank = len(weight.shape) - 1 if first.op_type == "Conv" else 1
    if rank == 1 and any(node.op_type in _POOLS for node in between):
        return None
    bias = [first.inputs[2]] if len(first.inputs) > 2 and first.inputs[2] else []
    vectors = _vectors(index, between, channels, rank)
    if vectors is None or after.shape[input_axis(second)] != channels:
        return None
    if any(index.constant(name) is None or index.facts.constants[name].shape != (channels,) for name in bias):
        return None
    names = tuple(dict.fromkeys([*bias, *vectors]))
    zero_stays = _zero_stays(index, first.outputs[0], between, second.inputs[0], vectors)
    return ChannelPair(first, tuple(between), second, names, channels, zero_stays)


def _walk(index: GraphIndex, start: str, outputs: set[str]) -> tuple[list[Node], Node] | None:
    """Elementwise nodes that the value runs through, and the one product that reads what comes out."""
    between: dict[str, Node] = {}
    waiting, ends = [start], []
    while waiting:
        name = waiting.pop()
        readers = index.consumers.get(name, [])
        if name in outputs or not readers or len(between) > _MOST_NODES:
            return None
        for reader in readers:
            if reader.op_type in _KEEPS_ZERO | _ELEMENTWISE and len(reader.outputs) == 1 and not reader.depth:
                if reader.outputs[0] not in between:
                    between[reader.outputs[0]] = reader
                    waiting.append(reader.outputs[0])
            else:
                ends.append((reader, name))
    inside = {start, *between}
    closed = all(
        i in inside or not i or index.constant(i) is not None for node in between.values() for i in node.inputs
    )
    one_end = len(ends) == 1 and ends[0][0].inputs[0] == ends[0][1]
    return (list(between.values()), ends[0][0]) if closed and one_end else None


def _vectors(index: GraphIndex, between: list[Node], channels: int, rank: int) -> list[str] | None:
    """Constants of one element a channel; nothing where one is neither that nor a single number."""
    found = []
    for node in between:
        for name in node.inputs:
            constant = index.constant(name)
            if constant is None or int(np.prod(constant.shape)) == 1:
                continue
            along = len(constant.shape) - rank
            shared = len(index.consumers[name]) > 1 or name in index.facts.listed_inputs
            others = [size for axis, size in enumerate(constant.shape) if axis != along]
            if along < 0 or constant.shape[along] != channels or set(others) - {1} or shared:
                return None
            found.append(name)
    return found


def _zero_stays(index: GraphIndex, start: str, between: list[Node], end: str, vectors: list[str]) -> bool:
    if all(node.op_type in _KEEPS_ZERO or (node.op_type == "Add" and _adds_vector(node, vectors)) for node in between):
        return True
    zero = np.zeros(1, np.float32)
    value = Evaluator(index, {start: zero, **dict.fromkeys(vectors, zero)}).value(end)
    return value is not None and not np.any(value)


def _adds_vector(node: Node, vectors: list[str]) -> bool:
    return any(name in vectors for name in node.inputs)
