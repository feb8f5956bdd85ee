"""What an attention block computes, found by running it on numbered elements.

Exporters reshape, transpose, split, scale and mask in many orders. Whether a piece of a graph splits a
projection into heads is told by where each numbered element ends up; whether a mask is a padding mask, by what
it adds for a mask of ones and zeros.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from unlag.model.facts import GraphIndex, Node
from unlag.rewrites.attention_pattern import AttentionBlock, probe_feeds, probe_sizes
from unlag.rewrites.evaluate import Array, Evaluator
from unlag.rewrites.projections import Projection

Numbers = npt.NDArray[np.float64]

_ROUNDING = 1e-5
"""Scales are float32 constants; the numbered elements are float64."""
_HIDES = -1e4
"""What is added to a padded token is at most this: exp(-1e4) is 0 in float32."""
_LONGEST_PATH = 24


class Mask(msgspec.Struct, frozen=True):
    """``padding``: ``name`` is a graph input of ones and zeros; ``bias``: ``name`` is added to the scaled scores."""

    kind: Literal["none", "padding", "bias"]
    name: str = ""
    hidden: float = 0.0
    """What a padded token's score is lowered by."""


class Layout(msgspec.Struct, frozen=True):
    """softmax(scale · q·kᵀ + mask)·v; q, k and v are the columns from ``starts[i]`` on of their projections."""

    heads: int
    head_size: int
    starts: tuple[int, int, int]
    scale: float
    mask: Mask
    merged: str
    """The value that holds the heads side by side again, [batch, sequence, heads · head size]."""

    @property
    def width(self) -> int:
        """Columns of q, of k, of v and of the result."""
        return self.heads * self.head_size


def read_layout(index: GraphIndex, block: AttentionBlock) -> Layout | None:
    """The layout of a spelled-out block of plain self or cross attention; nothing where it is anything else."""
    projections = block.projections
    if block.fused or not _is_plain(index, block) or any(p is None or p.width is None for p in projections):
        return None
    feeds = probe_feeds(index, projections)
    evaluator = Evaluator(index, feeds)
    heads = [evaluator.value(name) for name in block.operands]
    perms = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    parts = [_head_part(array, perm, feeds, p) for array, perm, p in zip(heads, perms, projections, strict=True)]
    if parts[0] is None or parts[1] is None or parts[2] is None or heads[0] is None:
        return None
    (q_start, q_factor), (k_start, k_factor), (v_start, v_factor) = parts[0], parts[1], parts[2]
    count, size = heads[0].shape[1], heads[0].shape[3]
    between = _scores_to_softmax(index, block, count)
    merged = _merged(index, block, count, size)
    if between is None or merged is None or abs(v_factor - 1) > _ROUNDING:
        return None
    factor, mask = between
    return Layout(count, size, (q_start, k_start, v_start), q_factor * k_factor * factor, mask, merged)


def _is_plain(index: GraphIndex, block: AttentionBlock) -> bool:
    """Plain products and a Softmax over the keys."""
    products = [index.producer(block.scores), index.producer(block.context)]
    softmax = _softmax(index, block)
    return all(p is not None and p.op_type == "MatMul" for p in products) and softmax.attributes.get("axis", -1) in {
        -1,
        3,
    }


def _softmax(index: GraphIndex, block: AttentionBlock) -> Node:
    return next(node for node in index.consumers[block.softmax] if node.op_type == "Softmax")


def _head_part(
    array: Array | None, perm: tuple[int, ...], feeds: dict[str, Array], projection: Projection | None
) -> tuple[int, float] | None:
    """First column and factor of what must be columns of the projection, split into heads and permuted."""
    if array is None or projection is None or array.ndim != len(perm):
        return None
    numbers = feeds[projection.output].astype(np.float64)
    back = np.transpose(array, np.argsort(perm)).astype(np.float64)
    batch, sequence, heads, size = back.shape
    if (batch, sequence) != numbers.shape[:2] or size < 2:
        return None
    factor = float(back[0, 0, 0, 1] - back[0, 0, 0, 0])
    if not factor or not np.isfinite(factor):
        return None
    start = round(float(back[0, 0, 0, 0]) / factor - float(numbers[0, 0, 0]))
    expected = factor * numbers[:, :, max(start, 0) : start + heads * size]
    if start < 0 or expected.shape[2] != heads * size or not _close(back.reshape(expected.shape), expected):
        return None
    return start, factor


def _close(ours: Numbers, theirs: Numbers) -> bool:
    scale = float(np.abs(theirs).max(initial=0.0))
    return ours.shape == theirs.shape and float(np.abs(ours - theirs).max(initial=0.0)) <= _ROUNDING * scale


def _scores_to_softmax(index: GraphIndex, block: AttentionBlock, heads: int) -> tuple[float, Mask] | None:
    """The factor and the mask between the scores and the Softmax, and nothing else between them."""
    batch, sequence = probe_sizes(index.facts)
    shape = (batch, heads, sequence, sequence)
    scores = 1.0 + np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    softmax = _softmax(index, block)
    guarded = Evaluator(index, {softmax.outputs[0]: 1 / scores}).value(_context_input(index, block))
    if guarded is None or not _close(guarded.astype(np.float64), 1 / scores):
        return None
    feeds = probe_feeds(index, ())
    plain = _run(index, block, {**feeds, block.scores: scores})
    if plain is not None and plain.shape == shape:
        factor = float(plain.reshape(-1)[1] - plain.reshape(-1)[0])
        if factor and _close(plain, factor * scores):
            mask = _padding_mask(index, block, feeds, shape)
            if mask is not None:
                return factor, mask
    return _bias(index, block, scores)


def _context_input(index: GraphIndex, block: AttentionBlock) -> str:
    product = index.producer(block.context)
    return "" if product is None else product.inputs[0]


def _run(index: GraphIndex, block: AttentionBlock, feeds: dict[str, Array]) -> Numbers | None:
    value = Evaluator(index, feeds).value(block.softmax)
    return None if value is None else value.astype(np.float64)


def _padding_mask(
    index: GraphIndex, block: AttentionBlock, feeds: dict[str, Array], shape: tuple[int, int, int, int]
) -> Mask | None:
    """The graph input whose zeros hide keys, the same ones from every query; nothing if an input does anything else."""
    found = Mask("none")
    keep = np.ones((shape[0], shape[3]), bool)
    keep[1:, -2:] = False
    keep[-1, 0] = False
    for name, ones in feeds.items():
        added = _run(index, block, {**feeds, block.scores: np.zeros(shape), name: keep.astype(ones.dtype)})
        if added is None:
            return None
        if not added.any():
            continue
        seen = np.broadcast_to(keep[:, None, None, :], shape)
        if found.kind != "none" or added[seen].any() or float(added[~seen].max()) > _HIDES:
            return None
        found = Mask("padding", name, float(added.min()))
    return found


def _bias(index: GraphIndex, block: AttentionBlock, scores: Numbers) -> tuple[float, Mask] | None:
    """Any other additive mask: a tensor that the last Add before the Softmax adds to the scaled scores."""
    add = index.producer(block.softmax)
    if add is None or add.op_type != "Add":
        return None
    added = np.random.default_rng(0).integers(1, 100, scores.shape).astype(np.float64)
    for name in add.inputs:
        both = _run(index, block, {block.scores: scores, name: added})
        alone = _run(index, block, {block.scores: scores, name: np.zeros_like(added)})
        if both is None or alone is None or alone.shape != scores.shape or not _close(both - alone, added):
            continue
        factor = float(alone.reshape(-1)[1] - alone.reshape(-1)[0])
        if factor and _close(alone, factor * scores):
            return factor, Mask("bias", name)
    return None


def _merged(index: GraphIndex, block: AttentionBlock, heads: int, size: int) -> str | None:
    """The first value behind the context that holds the heads side by side."""
    batch, sequence = probe_sizes(index.facts)
    numbers = np.arange(batch * heads * sequence * size, dtype=np.float64).reshape(batch, heads, sequence, size)
    expected = numbers.transpose(0, 2, 1, 3).reshape(batch, sequence, heads * size)
    evaluator = Evaluator(index, {**probe_feeds(index, block.projections), block.context: numbers})
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
        if value.shape == expected.shape and np.array_equal(value, expected):
            return name
    return None


def head_values(index: GraphIndex, block: AttentionBlock, layout: Layout) -> tuple[str, str, str] | None:
    """Values that hold exactly q, k and v, [batch, sequence, width], before they are split into heads."""
    feeds = probe_feeds(index, block.projections)
    evaluator = Evaluator(index, feeds)
    names = []
    for operand, projection, start in zip(block.operands, block.projections, layout.starts, strict=True):
        if projection is None:
            return None
        expected = feeds[projection.output][:, :, start : start + layout.width]
        name = _matching(index, evaluator, operand, projection.output, expected)
        if name is None:
            return None
        names.append(name)
    return names[0], names[1], names[2]


def _matching(index: GraphIndex, evaluator: Evaluator, name: str, end: str, expected: Array) -> str | None:
    for _step in range(_LONGEST_PATH):
        value = evaluator.value(name)
        if value is not None and value.shape == expected.shape and np.array_equal(value, expected):
            return name
        node = index.producer(name)
        if name == end or node is None:
            return None
        data = [i for i in node.inputs if i and index.constant(i) is None]
        name = data[0] if data else end
    return None
