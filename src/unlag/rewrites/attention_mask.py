"""What is between attention's scores and its Softmax, found by running it: a factor, and a mask by what it adds."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from unlag.model.facts import Constant, GraphIndex, Node
from unlag.rewrites.attention_operands import Numbers, Operands, attends_to_itself, close
from unlag.rewrites.attention_pattern import AttentionBlock, probe_feeds
from unlag.rewrites.evaluate import Array, Evaluator

_HIDES = -9e3
"""What is added to a hidden token is at most this: exp(-9e3) is 0 in float32. Exporters write -1e4, which quantizers
round."""

_PLACING = frozenset(
    {"Add", "Sub", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Min", "Max", "Mod", "Clip", "Trilu"}
)
_FEWEST = 2
_MOST_VALUES = 400
_KEEPING = frozenset("iub")
"""Kinds of numbers that a padding mask holds; fractions would hide by halves."""


class Mask(msgspec.Struct, frozen=True):
    """``padding``: ``name`` is a graph input of ones and zeros; ``bias``: ``name`` is added to the scaled scores."""

    kind: Literal["none", "padding", "bias"]
    name: str = ""
    hidden: float = 0.0
    """What a hidden token's score is lowered by."""
    causal: bool = False
    """No query sees a key behind its own place, besides what the padding hides."""


class _Between:
    """The piece of graph from the scores to the Softmax, and from there to the product with the values."""

    def __init__(self, index: GraphIndex, block: AttentionBlock, operands: Operands) -> None:
        self.index, self.block = index, block
        query = operands.query
        batch, sequence = query.numbers.shape[0], query.columns().shape[1]
        self.shape = (batch, query.heads, sequence, operands.key.columns().shape[1])
        self.fed_shape = (batch * query.heads, *self.shape[2:]) if query.flat else self.shape
        self.feeds = {**probe_feeds(index, ()), **operands.feeds}
        self.inputs = probe_feeds(index, ())

    def before_softmax(self, scores: Numbers, **changed: Array) -> Numbers | None:
        """What the Softmax reads for these scores, [batch, heads, queries, keys]."""
        feeds = {**self.feeds, self.block.scores: scores.reshape(self.fed_shape), **changed}
        value = Evaluator(self.index, feeds).value(self.block.softmax)
        if value is None or value.size != np.prod(self.shape):
            return None
        return value.astype(np.float64).reshape(self.shape)

    def is_kept(self) -> bool:
        """Whether what the Softmax gives reaches the values as it is; a guard against NaN changes no number."""
        weights = 1 / self.numbered()
        product, softmax = self.index.producer(self.block.context), softmax_of(self.index, self.block)
        feeds = {
            **self.feeds,
            self.block.scores: self.numbered().reshape(self.fed_shape),
            softmax.outputs[0]: weights.reshape(self.fed_shape),
        }
        read = None if product is None else Evaluator(self.index, feeds).value(product.inputs[0])
        if read is None or read.size != weights.size:
            return False
        return close(read.astype(np.float64).reshape(self.shape), weights)

    def numbered(self) -> Numbers:
        """Scores that are all different."""
        return 1.0 + np.arange(np.prod(self.shape), dtype=np.float64).reshape(self.shape)


def softmax_of(index: GraphIndex, block: AttentionBlock) -> Node:
    """The block's Softmax."""
    return next(node for node in index.consumers[block.softmax] if node.op_type == "Softmax")


def read_between(index: GraphIndex, block: AttentionBlock, operands: Operands) -> tuple[float, Mask] | None:
    """The factor and the mask between the scores and the Softmax; nothing where anything else is between them."""
    between = _Between(index, block, operands)
    if not between.is_kept():
        return None
    scores = between.numbered()
    added = between.before_softmax(np.zeros(between.shape)) if is_told_by_few(index, block) else None
    causal = added is not None and _is_causal(added) and attends_to_itself(index, operands)
    if added is not None and (causal or not added.any()):
        factor = _factor(between, scores, causal=causal)
        mask = None if factor is None else _padding(between, added, causal=causal)
        if factor is not None and mask is not None:
            return factor, mask
    return _bias(between, scores)


def _factor(between: _Between, scores: Numbers, *, causal: bool) -> float | None:
    """What visible scores are multiplied by."""
    plain = between.before_softmax(scores)
    if plain is None:
        return None
    seen = np.broadcast_to(_earlier(plain) if causal else np.ones((1, 1), bool), plain.shape)
    kept, given = plain[seen], scores[seen]
    factor = float((kept[-1] - kept[0]) / (given[-1] - given[0])) if len(given) > 1 else 0.0
    return factor if factor and np.isfinite(factor) and close(kept, factor * given) else None


def _earlier(scores: Numbers) -> npt.NDArray[np.bool_]:
    """Whether a key stands at or before a query, [queries, keys]."""
    return np.tri(*scores.shape[-2:], dtype=np.bool_)


def _is_causal(added: Numbers) -> bool:
    queries, keys = added.shape[-2:]
    seen = np.broadcast_to(_earlier(added), added.shape)
    return bool(queries == keys > 1 and not added[seen].any() and float(added[~seen].max()) <= _HIDES)


def _padding(between: _Between, plain: Numbers, *, causal: bool) -> Mask | None:
    """The graph input whose zeros hide keys, the same ones from every query; nothing if an input does anything else."""
    found = Mask("none", hidden=float(plain.min()), causal=causal)
    keep = np.ones((plain.shape[0], plain.shape[3]), bool)
    keep[1:, -2:] = False
    keep[-1, 0] = False
    for name, ones in between.inputs.items():
        if ones.dtype.kind not in _KEEPING:
            continue
        added = between.before_softmax(np.zeros(plain.shape), **{name: keep.astype(ones.dtype)})
        if added is None:
            return None
        if np.array_equal(added, plain):
            continue
        seen = np.broadcast_to(keep[:, None, None, :], plain.shape)
        seen = seen & _earlier(plain) if causal else seen
        if found.kind != "none" or added[seen].any() or float(added[~seen].max()) > _HIDES:
            return None
        found = Mask("padding", name, float(added.min()), causal)
    return found


def is_told_by_few(index: GraphIndex, block: AttentionBlock) -> bool:
    """Whether a mask that a few tokens show is the mask of many.

    A window over so many neighbors is not seen in fewer tokens: its width is a number that places are compared with or
    that is added to them, or it is in a constant table of queries and keys.
    """
    waiting, seen = [block.softmax], {block.softmax, block.scores}
    while waiting:
        node = index.producer(waiting.pop())
        if node is None or node.op_type in {"Shape", "Size"}:
            continue
        for name in node.inputs:
            constant = index.constant(name) if name else None
            if constant is not None and (_is_width(node, constant) or _is_odd_table(index, name)):
                return False
            if name and name not in seen:
                seen.add(name)
                waiting.append(name)
        if len(seen) > _MOST_VALUES:
            return False
    return True


def _is_width(node: Node, constant: Constant) -> bool:
    if node.op_type not in _PLACING or constant.values is None or constant.dtype == "bool":
        return False
    return any(_FEWEST < abs(value) < -_HIDES for value in constant.values)


def _is_odd_table(index: GraphIndex, name: str) -> bool:
    """Whether a constant has something for each query and key that is no plain triangle."""
    shape = index.facts.constants[name].shape
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return False
    array = index.stored(name)
    if array is None or shape[-1] != shape[-2]:
        return True
    matrices = array.reshape(-1, *shape[-2:])
    before = np.tri(shape[-1], dtype=bool)
    return not all(len(np.unique(m[before])) == len(np.unique(m[~before])) == 1 for m in matrices)


def _bias(between: _Between, scores: Numbers) -> tuple[float, Mask] | None:
    """Any other additive mask: a tensor that the last Add before the Softmax adds to the scaled scores."""
    add = between.index.producer(between.block.softmax)
    if add is None or add.op_type != "Add":
        return None
    added = np.random.default_rng(0).integers(1, 100, scores.shape).astype(np.float64)
    for name in add.inputs:
        both = between.before_softmax(scores, **{name: added})
        alone = between.before_softmax(scores, **{name: np.zeros_like(added)})
        if both is None or alone is None or not close(both - alone, added):
            continue
        factor = float(alone.reshape(-1)[1] - alone.reshape(-1)[0])
        if factor and close(alone, factor * scores):
            return factor, Mask("bias", name)
    return None
