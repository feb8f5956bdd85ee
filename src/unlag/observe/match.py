"""Which tensors of two models carry the same values: by values and order, never by names. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from unlag.measure.sketch import TensorSketch
from unlag.observe.evidence import TensorPair

FEWEST_ELEMENTS = 16
"""Smaller tensors (a scale, a shape) are alike by chance."""
LEAST_CORRELATION = 0.5
"""Of the samples, centered. Each has to be the other's best as well, so this only keeps strangers apart: a variant that
lost its attention scale still reaches 0.6 behind its last layer."""
DIGITS = 4
"""Correlations that agree to so many digits are a tie, which the order of the tensors decides."""
MASKED = 1e4
"""Scores beyond this are masks, not values; whether a mask is -1e4 or -3e38 changes nothing."""

Matrix = npt.NDArray[np.float32]


def match_tensors(standard: Mapping[str, TensorSketch], variant: Mapping[str, TensorSketch]) -> tuple[TensorPair, ...]:
    """Pairs of tensors that are each other's best match and keep the order of both graphs.

    Tensors of one element count are compared in flat order, so a reshaped tensor is found and a transposed one is not.
    Between two pairs, what is left is matched again: a stranger elsewhere can't take a tensor's place there.
    """
    sides = _Samples(standard), _Samples(variant)
    found = _between(sides, (0, len(sides[0].names)), (0, len(sides[1].names)))
    return tuple(
        TensorPair(ours, theirs, correlation, relative_error(standard[ours].values, variant[theirs].values))
        for ours, theirs, correlation in (
            (sides[0].names[one], sides[1].names[other], correlation) for one, other, correlation in found
        )
    )


class _Samples:
    """The telling tensors of one side in order, with their samples made comparable."""

    def __init__(self, sketches: Mapping[str, TensorSketch]) -> None:
        self.names = [name for name, sketch in sketches.items() if _is_telling(sketch)]
        self.counts = [_count(sketches[name]) for name in self.names]
        self.rows = [_normalized(sketches[name].values) for name in self.names]


Sides = tuple[_Samples, _Samples]
Match = tuple[int, int, float]


def _between(sides: Sides, ours: tuple[int, int], theirs: tuple[int, int]) -> list[Match]:
    """Matches of two ranges, in order, with those found in the gaps between them."""
    anchors = _in_order(_best(sides, range(*ours), range(*theirs)))
    if not anchors:
        return []
    found: list[Match] = []
    begin = ours[0], theirs[0]
    for one, other, correlation in [*anchors, (ours[1], theirs[1], 0.0)]:
        if begin[0] < one and begin[1] < other:
            found += _between(sides, (begin[0], one), (begin[1], other))
        if correlation:
            found.append((one, other, correlation))
        begin = one + 1, other + 1
    return found


def _best(sides: Sides, ours: range, theirs: range) -> list[Match]:
    """Mutual best matches, by element count; among equals, the first of each side."""
    groups: dict[int, tuple[list[int], list[int]]] = {}
    for side, places in enumerate((ours, theirs)):
        for place in places:
            groups.setdefault(sides[side].counts[place], ([], []))[side].append(place)
    found: list[Match] = []
    for rows, columns in groups.values():
        if not rows or not columns:
            continue
        left = np.stack([sides[0].rows[row] for row in rows])
        right = np.stack([sides[1].rows[column] for column in columns])
        correlation = np.round(left @ right.T, DIGITS)
        of_row, of_column = correlation.argmax(axis=1), correlation.argmax(axis=0)
        found += [
            (rows[row], columns[column], float(correlation[row, column]))
            for row, column in enumerate(of_row)
            if of_column[column] == row and correlation[row, column] >= LEAST_CORRELATION
        ]
    return sorted(found)


def _in_order(found: Sequence[Match]) -> list[Match]:
    """The most matches of which none crosses another."""
    return [found[index] for index in _increasing([other for _, other, _ in found])]


def _count(sketch: TensorSketch) -> int:
    return int(np.prod(sketch.facts.shape, dtype=np.int64))


def _is_telling(sketch: TensorSketch) -> bool:
    facts = sketch.facts
    return "float" in facts.dtype and _count(sketch) >= FEWEST_ELEMENTS and facts.low < facts.high


def _normalized(values: Matrix) -> Matrix:
    """A sample with masks and infinities as zero, centered, of length one."""
    row = _unmasked(values)
    row -= row.mean()
    length = max(float(np.linalg.norm(row)), float(np.finfo(np.float32).tiny))
    return np.asarray(row / length, np.float32)


def _unmasked(values: Matrix) -> Matrix:
    numbers = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    return np.where(np.abs(numbers) < MASKED, numbers, np.float32(0.0)).astype(np.float32)


def relative_error(standard: Matrix, variant: Matrix) -> float:
    """Root mean square of the difference over that of the standard's values, masks left out."""
    a, b = _unmasked(standard), _unmasked(variant)
    size = float(np.sqrt(np.mean(np.square(a))))
    return float(np.sqrt(np.mean(np.square(b - a)))) / size if size else 0.0


def _increasing(numbers: Sequence[int]) -> list[int]:
    """Indexes of a longest strictly increasing subsequence: pairs that cross others are strangers."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, number in enumerate(numbers):
        position = bisect_left(ends, number)
        before.append(last[position - 1] if position else -1)
        if position == len(ends):
            ends.append(number)
            last.append(index)
        else:
            ends[position], last[position] = number, index
    chain: list[int] = []
    index = last[-1] if last else -1
    while index >= 0:
        chain.append(index)
        index = before[index]
    return chain[::-1]
