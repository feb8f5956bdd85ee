"""What an attention block computes, found by running it on numbered elements.

Exporters reshape, transpose, split, scale and mask in many orders. Whether a piece of a graph splits a
projection into heads is told by where each numbered element ends up; whether a mask is a padding mask, by what
it adds for a mask of ones and zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unlag.model.facts import GraphIndex
from unlag.rewrites.attention_mask import Mask, read_between, softmax_of
from unlag.rewrites.attention_operands import ROUNDING, Operands, read_operands
from unlag.rewrites.attention_pattern import AttentionBlock
from unlag.rewrites.evaluate import Evaluator

_LONGEST_PATH = 24
_SINGLE_AXIS = 13
"""From this opset on Softmax has one axis, by default the last; before, all from ``axis`` on, by default from 1 on."""


class Layout(NamedTuple):
    """softmax(scale · q·kᵀ + mask)·v; q, k and v are the columns from ``starts[i]`` on of what they come from."""

    heads: int
    groups: int
    """Heads of keys and of values; fewer than ``heads`` where several queries share them."""
    head_size: int
    starts: tuple[int, int, int]
    scale: float
    mask: Mask
    merged: str
    """The value that holds the heads side by side again, [batch, sequence, heads · head size]."""
    operands: Operands

    @property
    def width(self) -> int:
        """Columns of q and of the result."""
        return self.heads * self.head_size


def read_layout(index: GraphIndex, block: AttentionBlock, floats: frozenset[str] | None = None) -> Layout | None:
    """The layout of a spelled-out block of plain self or cross attention; nothing where it is anything else.

    Args:
        index: the graph, or its plain view.
        block: one of its blocks.
        floats: names of the values that really hold floats, where the view takes codes for floats.
    """
    if block.fused or not _is_plain(index, block):
        return None
    operands = read_operands(index, block)
    if operands is not None and not _is_over_keys(index, block, operands.query.flat):
        return None
    between = None if operands is None else read_between(index, block, operands)
    merged = None if operands is None else _merged(index, block, operands, floats)
    if operands is None or between is None or merged is None or abs(operands.value.factor - 1) > ROUNDING:
        return None
    query, key, value, _feeds = operands
    factor, mask = between
    return Layout(
        heads=query.heads,
        groups=key.heads,
        head_size=query.size,
        starts=(query.start, key.start, value.start),
        scale=query.factor * key.factor * factor,
        mask=mask,
        merged=merged,
        operands=operands,
    )


def _is_plain(index: GraphIndex, block: AttentionBlock) -> bool:
    products = [index.producer(block.scores), index.producer(block.context)]
    return all(p is not None and p.op_type == "MatMul" for p in products)


def _is_over_keys(index: GraphIndex, block: AttentionBlock, flat: bool) -> bool:  # noqa: FBT001 - a fact of the block
    """Whether the Softmax is taken over the last axis."""
    default = -1 if index.facts.opset.get("", _SINGLE_AXIS) >= _SINGLE_AXIS else 1
    return softmax_of(index, block).attributes.get("axis", default) in {-1, 2 if flat else 3}


def _merged(index: GraphIndex, block: AttentionBlock, operands: Operands, floats: frozenset[str] | None) -> str | None:
    """The first value behind the context that holds the heads side by side."""
    query = operands.query
    batch, sequence, width = query.columns().shape
    numbers = np.arange(batch * sequence * width, dtype=np.float64)
    shape = (batch, query.heads, sequence, query.size)
    heads = numbers.reshape(shape)
    expected = heads.transpose(0, 2, 1, 3).reshape(batch, sequence, width)
    fed = heads.reshape(-1, sequence, query.size) if query.flat else heads
    evaluator = Evaluator(index, {**operands.feeds, block.context: fed})
    name = block.context
    for _step in range(_LONGEST_PATH):
        # Exporters ask for the Shape in between, to have the Reshape's sizes.
        readers = [node for node in index.consumers.get(name, []) if node.op_type != "Shape"]
        if len(readers) != 1 or not readers[0].outputs:
            return None
        name = readers[0].outputs[0]
        value = evaluator.value(name)
        if value is None:
            return None
        usable = floats is None or name in floats
        if usable and value.shape == expected.shape and np.array_equal(value, expected):
            return name
    return None
