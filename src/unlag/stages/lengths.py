"""Texts of many lengths: what padding wastes, and what batches by length win, in time of the fixed model.

A batch is as wide as its longest text, and what is filled up is computed for nothing. Texts that are put together by
their lengths need little of it. Ways to cut the workload's own texts into batches take turns on the fixed model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unlag.measure.batches import time_batches
from unlag.measure.bench import Bench, inspect
from unlag.measure.statistics import Interval, mean_interval, ratio_interval
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed
from unlag.stages.fixed import Lengths, Way

IDS, MASK = "input_ids", "attention_mask"
"""What tells a text and its length."""

BATCH = 32
"""Rows of a batch where a data set is run, unless the timed shape has more."""
BUCKETS = 4
"""How many widths buckets have: as many as one would export models of fixed shapes for."""
ROUNDS = 3
PASS_MS = 1500.0
"""So long about may one way take in a round; of a larger data set a sample is run."""
FEWEST_ROWS, MOST_ROWS = 64, 1024

ARRIVAL, SORTED, SAME, BUCKETED = "as they come", "sorted by length", "by equal lengths", "in buckets"


@dataclass(frozen=True)
class Batches:
    """Which texts run together, and how wide each batch is."""

    members: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...]

    def padding(self, lengths: npt.NDArray[np.int64]) -> float:
        """Share of all tokens that only fill up."""
        computed = sum(width * len(rows) for rows, width in zip(self.members, self.widths, strict=True))
        return 1.0 - float(lengths.sum()) / computed


def measure_lengths(bench: Bench, variant: Variant) -> Lengths | None:
    """Time the ways to batch the workload's texts; nothing where it has no texts of different lengths.

    Nothing either where the model takes inputs of one shape only.

    Raises:
        ContenderError: the model can't run such batches.
    """
    evaluation = bench.workload.evaluation
    texts = rows_of(evaluation.feeds) if evaluation is not None else None
    if texts is None or len({text[IDS].shape[1] for text in texts}) < 2 or not _takes_any_shape(variant):
        return None
    batch = max(BATCH, len(next(iter(bench.workload.feed.values()))))
    rng = np.random.default_rng(bench.case.seed)
    order = rng.permutation(len(texts))  # workloads sort their texts: in use they come in any order
    rows = _affordable(bench, variant, [texts[int(index)] for index in order[:FEWEST_ROWS]], batch)
    return _measured(bench, variant, [texts[int(index)] for index in order[:rows]], batch, texts)


def _measured(bench: Bench, variant: Variant, texts: Sequence[Feed], batch: int, everything: Sequence[Feed]) -> Lengths:
    lengths = _lengths(texts)
    widths = bucket_widths(lengths)
    ways = {
        ARRIVAL: in_order(np.arange(len(texts)), lengths, batch),
        SORTED: in_order(np.argsort(lengths, kind="stable"), lengths, batch),
        SAME: by_width(lengths, lengths, batch),
        BUCKETED: by_width(np.array(widths)[np.searchsorted(widths, lengths)], lengths, batch),
    }
    bench.progress("batches of texts by length")
    timed = time_batches(bench, variant, {name: feeds_of(texts, way) for name, way in ways.items()}, ROUNDS)
    all_lengths = _lengths(everything)
    return Lengths(
        texts=len(everything),
        rows=len(texts),
        batch=batch,
        shortest=int(all_lengths.min()),
        median=int(np.median(all_lengths)),
        longest=int(all_lengths.max()),
        ways=tuple(
            Way(
                name=name,
                batches=len(way.members),
                padding=way.padding(lengths),
                time_ms=mean_interval(timed.times_ms[name]),
                ratio=_ratio(timed.times_ms, name),
                widths=widths if name == BUCKETED else (),
            )
            for name, way in ways.items()
        ),
        quiet=timed.quiet,
    )


def _ratio(times_ms: Mapping[str, Sequence[float]], name: str) -> Interval:
    return Interval(1.0, 1.0, 1.0) if name == ARRIVAL else ratio_interval(times_ms[name], times_ms[ARRIVAL])


def _lengths(texts: Sequence[Feed]) -> npt.NDArray[np.int64]:
    return np.array([text[IDS].shape[1] for text in texts], np.int64)


def _affordable(bench: Bench, variant: Variant, few: Sequence[Feed], batch: int) -> int:
    """How many texts fit into ``PASS_MS``, told from a few of them."""
    batches = in_order(np.arange(len(few)), _lengths(few), batch)
    timed = time_batches(bench, variant, {ARRIVAL: feeds_of(few, batches)}, 1)
    row_ms = min(timed.times_ms[ARRIVAL]) / len(few)
    return int(np.clip(PASS_MS / row_ms, FEWEST_ROWS, MOST_ROWS))


def rows_of(feeds: Sequence[Feed]) -> list[Feed] | None:
    """Each text by itself without padding, [1, length]; nothing where the feeds are no texts padded at their ends."""
    texts: list[Feed] = []
    for feed in feeds:
        shapes = {array.shape for array in feed.values()}
        if not {IDS, MASK} <= set(feed) or len(shapes) != 1 or len(feed[IDS].shape) != 2:
            return None
        mask = np.asarray(feed[MASK]) != 0
        for row, kept in enumerate(mask.sum(axis=1)):
            if not kept or not mask[row, :kept].all():
                return None
            texts.append({name: array[row : row + 1, :kept] for name, array in feed.items()})
    return texts


def bucket_widths(lengths: npt.NDArray[np.int64], most: int = BUCKETS) -> tuple[int, ...]:
    """The widths, at most so many, with which least is padded; the last one is the longest text's.

    By dynamic programming over the lengths that occur: the best split up to each of them from the best shorter ones.
    """
    widths, counts = np.unique(lengths, return_counts=True)
    up_to = np.cumsum(counts)
    tokens = widths * up_to  # all texts up to a width, padded to it
    splits: list[tuple[int, ...]] = [(int(width),) for width in widths]
    for _ in range(most - 1):
        shorter, shorter_splits = tokens.copy(), list(splits)
        for last, width in enumerate(widths):
            padded = shorter[:last] + width * (up_to[last] - up_to[:last])
            if last and padded.min() < tokens[last]:
                split = int(padded.argmin())
                tokens[last], splits[last] = padded[split], (*shorter_splits[split], int(width))
    return splits[-1]


def in_order(order: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], batch: int) -> Batches:
    """Texts in this order, ``batch`` at a time, each batch as wide as its longest."""
    members = tuple(tuple(map(int, order[start : start + batch])) for start in range(0, len(order), batch))
    return Batches(members, tuple(int(lengths[list(rows)].max()) for rows in members))


def by_width(widths: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], batch: int) -> Batches:
    """Texts of one width together, ``batch`` at a time, in the order in which they come."""
    members: list[tuple[int, ...]] = []
    wide: list[int] = []
    for width in np.unique(widths):
        own = in_order(np.flatnonzero(widths == width), lengths, batch)
        members += own.members
        wide += [int(width)] * len(own.members)
    return Batches(tuple(members), tuple(wide))


def feeds_of(texts: Sequence[Feed], batches: Batches) -> list[Feed]:
    """The batches as a model takes them: filled up with zeros, which the mask leaves out."""
    return [
        {name: _padded([texts[index][name] for index in rows], width) for name in texts[rows[0]]}
        for rows, width in zip(batches.members, batches.widths, strict=True)
    ]


def _padded(rows: Sequence[Array], width: int) -> Array:
    filled = np.zeros((len(rows), width), rows[0].dtype)
    for number, row in enumerate(rows):
        filled[number, : row.shape[1]] = row[0]
    return filled


def _takes_any_shape(variant: Variant) -> bool:
    """Whether batch and length are free."""
    inputs = inspect(variant).signature.inputs
    return all(not isinstance(size, int) for info in inputs if info.shape is not None for size in info.shape)
