"""What attention's queries, keys and values are made of, told by numbering elements and looking where they end up."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from unlag.model.facts import GraphIndex
from unlag.rewrites.attention_pattern import AttentionBlock, probe_feeds, probe_sizes
from unlag.rewrites.evaluate import Array, Evaluator
from unlag.rewrites.projections import Projection, read_projection

Numbers = npt.NDArray[np.float64]
Form = Literal["columns", "heads"]
"""Of three axes [batch, sequence, heads · head size], or of four [batch, heads, sequence, head size]."""

ROUNDING = 1e-5
"""Scales are float32 constants; the numbered elements are float64."""


_MOST_VALUES = 100
"""Between a projection and a product; rotary positions with their tables take a few dozen."""


class Operand(NamedTuple):
    """Queries, keys or values as the block's product reads them, and where they come from."""

    origin: str
    form: Form
    numbers: Numbers
    """What the origin was fed with."""
    start: int
    """First column of theirs, where the origin has columns."""
    heads: int
    """Before they are repeated for grouped queries."""
    repeats: int
    size: int
    factor: float
    flat: bool
    """Batch and heads are one axis of the product's operands."""

    def columns(self) -> Numbers:
        """[batch, sequence, heads · head size], not repeated and not multiplied."""
        if self.form == "columns":
            return self.numbers[:, :, self.start : self.start + self.heads * self.size]
        batch, heads, sequence, size = self.numbers.shape
        return self.numbers.transpose(0, 2, 1, 3).reshape(batch, sequence, heads * size)

    def split(self, *, repeated: bool) -> Numbers:
        """[batch, heads, sequence, head size], each head as often as queries read it if ``repeated``."""
        batch, sequence = self.numbers.shape[0], self.columns().shape[1]
        heads = self.columns().reshape(batch, sequence, self.heads, self.size).transpose(0, 2, 1, 3)
        return np.repeat(heads, self.repeats, axis=1) if repeated else heads


class Operands(NamedTuple):
    """All three of a block, and the feeds that tell its layout."""

    query: Operand
    key: Operand
    value: Operand
    feeds: dict[str, Array]


def read_operands(index: GraphIndex, block: AttentionBlock) -> Operands | None:
    """The operands of a spelled-out block; nothing where one of them is no plain split into heads."""
    feeds = probe_feeds(index, block.projections)
    origins = [_fed(index, path[-1], feeds) for path in block.paths]
    if len(origins) != len(block.operands) or any(form is None for form in origins):
        return None
    evaluator = Evaluator(index, feeds)
    perms = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    found = []
    for name, perm, path, form in zip(block.operands, perms, block.paths, origins, strict=True):
        operand = None if form is None else _read(evaluator.value(name), perm, path[-1], form, feeds)
        if operand is None:
            return None
        found.append(operand)
    query, key, value = found
    shared = key.heads == value.heads and key.repeats == value.repeats and query.repeats == 1
    fits = query.heads == key.heads * key.repeats and query.size == key.size == value.size
    return Operands(query, key, value, feeds) if shared and fits else None


def _fed(index: GraphIndex, origin: str, feeds: dict[str, Array]) -> Form | None:
    """Number the elements of what an operand comes from; how it lies, or nothing where its shape can't be told."""
    batch, sequence = probe_sizes(index.facts)
    known = feeds.get(origin)
    if known is not None:
        return "columns" if known.ndim == 3 else ("heads" if known.ndim == 4 else None)
    sizes = index.sizes(origin) or ()
    if any(sizes[axis] is None for axis in range(1, len(sizes), 2)) or not sizes:
        sizes = _sizes_by_running(index, origin)
    shape: tuple[int | None, ...]
    if len(sizes) == 3:
        form, shape = "columns", (batch, sequence, sizes[2])
    elif len(sizes) == 4:
        form, shape = "heads", (batch, sizes[1], sequence, sizes[3])
    else:
        return None
    whole = [size for size in shape if size is not None]
    if len(whole) != len(shape):
        return None
    feeds[origin] = np.arange(1, np.prod(whole) + 1, dtype=np.float64).reshape(whole)
    return "columns" if form == "columns" else "heads"


def _sizes_by_running(index: GraphIndex, origin: str) -> tuple[int | None, ...]:
    """The shape that an origin has when what it is computed from is fed: rotated queries come from a projection."""
    projections, _leaves = _ancestors(index, origin)
    value = Evaluator(index, probe_feeds(index, projections)).value(origin) if projections else None
    return () if value is None else value.shape


def _ancestors(index: GraphIndex, origin: str) -> tuple[tuple[Projection, ...], frozenset[str]]:
    """The projections that a value is computed from, and the other values that nothing in the graph makes."""
    waiting, seen = [origin], {origin}
    projections, leaves = [], set()
    while waiting and len(seen) < _MOST_VALUES:
        name = waiting.pop(0)
        projection = read_projection(index, name)
        if projection is not None and projection.width is not None:
            projections.append(projection)
            continue
        node = index.producer(name)
        if node is None:
            leaves.add(name)
        if node is None or node.op_type in {"Shape", "Size"}:
            continue
        more = [i for i in node.inputs if i and i not in seen]
        waiting += more
        seen |= set(more)
    return tuple(projections), frozenset(leaves)


def attends_to_itself(index: GraphIndex, operands: Operands) -> bool:
    """Whether queries and keys are the same tokens: projected from one tensor, with no keys of earlier runs before."""
    sources = set()
    floats = {info.name for info in index.facts.inputs if info.dtype.startswith("float")}
    for operand in (operands.query, operands.key):
        projections, leaves = _ancestors(index, operand.origin)
        if not projections or leaves & floats:
            return False
        sources |= {projection.source for projection in projections}
    return len(sources) == 1


def _read(
    array: Array | None, perm: tuple[int, ...], origin: str, form: Form, feeds: dict[str, Array]
) -> Operand | None:
    """The operand whose product reads ``array``, which is [batch, heads, sequence, size] behind ``perm``."""
    numbers = feeds[origin].astype(np.float64)
    batch = numbers.shape[0]
    flat = array is not None and array.ndim == 3
    if array is None or array.ndim not in {3, 4} or array.shape[0] % batch:
        return None
    whole = array.reshape(batch, -1, *array.shape[1:]) if flat else array
    back = np.transpose(whole, np.argsort(perm)).astype(np.float64)  # [batch, sequence, heads, size]
    if back.shape[0] != batch or back.shape[3] < 2:
        return None
    firsts = back[0, 0, :, 0]
    repeats = int(np.argmax(firsts != firsts[0])) or len(firsts)
    single = back[:, :, ::repeats]
    factor = float(single[0, 0, 0, 1] - single[0, 0, 0, 0])
    if len(firsts) % repeats or not factor or not np.isfinite(factor):
        return None
    start = round(float(single[0, 0, 0, 0]) / factor - float(numbers.flat[0])) if form == "columns" else 0
    operand = Operand(origin, form, numbers, start, single.shape[2], repeats, single.shape[3], factor, flat)
    if start < 0 or operand.columns().shape != (*single.shape[:2], single.shape[2] * single.shape[3]):
        return None
    expected = operand.split(repeated=True).transpose(0, 2, 1, 3)
    return operand if close(back, factor * expected) else None


def close(ours: Numbers, theirs: Numbers) -> bool:
    """Whether arrays are of one shape and equal up to the rounding of float32 constants."""
    scale = float(np.abs(theirs).max(initial=0.0))
    return ours.shape == theirs.shape and float(np.abs(ours - theirs).max(initial=0.0)) <= ROUNDING * scale


class Held(NamedTuple):
    """A value of the graph that holds an operand's numbers times ``factor``."""

    name: str
    factor: float


class HeldForms(NamedTuple):
    """Where an operand can be read: as columns, split into heads, and with its heads repeated."""

    columns: Held | None
    split: Held | None
    repeated: Held | None


def held_forms(
    index: GraphIndex, path: tuple[str, ...], operand: Operand, feeds: dict[str, Array], usable: frozenset[str]
) -> HeldForms:
    """The values nearest to where an operand comes from that hold it as a fused operator wants it."""
    evaluator = Evaluator(index, feeds)
    wanted = (operand.columns(), operand.split(repeated=False), operand.split(repeated=True))
    found: list[Held | None] = [None, None, None]
    for name in reversed(path):
        array = evaluator.value(name) if name in usable else None
        if array is None:
            continue
        for place, expected in enumerate(wanted):
            factor = _factor(array.astype(np.float64), expected)
            if found[place] is None and factor is not None:
                found[place] = Held(name, factor)
    return HeldForms(*found)


def _factor(array: Numbers, expected: Numbers) -> float | None:
    if array.shape != expected.shape:
        return None
    factor = float(array.flat[0] / expected.flat[0])
    return factor if factor and np.isfinite(factor) and close(array, factor * expected) else None
