"""A model that ``unlag fix`` wrote, opened again: what ``unlag.load`` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from unlag.model.deployment import deployed_variant, read_deployment
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed
from unlag.runtimes.contract import find_runtime

BATCH = 32
"""Rows that run together; more gain little and cost memory."""

Outputs = Mapping[str, Array]


class FixedModel:
    """A model that ``unlag fix`` wrote, open and ready to run."""

    def __init__(self, variant: Variant, threads: int, replicas: int = 1) -> None:
        self.variant = variant
        self.threads = threads
        self.replicas = replicas
        """Copies of it that use the machine best together, each in a process and on cores of its own; 1 for latency."""
        self._session = find_runtime(variant.runtime).open(variant, threads)
        self.signature = self._session.signature

    def run(self, feed: Feed) -> Outputs:
        """Run once: inputs by name in, outputs by name out."""
        return self._session.run(feed)

    def run_rows(self, feeds: Sequence[Feed], batch: int = BATCH) -> list[Outputs]:
        """Run many feeds of any lengths, those of equal shapes together, and give their outputs in their order.

        Nothing is padded, so that no mask and no length has to be known. What a feed gives is what it would give alone,
        up to rounding: sums are taken in other blocks. Where activations are quantized at run time with one scale for
        the whole tensor, the rows of a batch share their scales: outputs differ by as much as quantization rounds.

        Args:
            feeds: each with its inputs by name; the first axis of every input is the batch, of one row or a few.
            batch: rows that run together at most.

        Returns:
            For each feed all outputs by name, with as many rows as it has.
        """
        found: dict[int, Outputs] = {}
        for indices in _alike(feeds) if self._takes_any_batch else [[index] for index in range(len(feeds))]:
            for start in range(0, len(indices), batch):
                part = indices[start : start + batch]
                found.update(zip(part, self._together([feeds[index] for index in part]), strict=True))
        return [found[index] for index in range(len(feeds))]

    @property
    def _takes_any_batch(self) -> bool:
        inputs = self.signature.inputs
        return all(info.shape is not None and info.shape and not isinstance(info.shape[0], int) for info in inputs)

    def _together(self, feeds: Sequence[Feed]) -> list[Outputs]:
        """One run of all, cut apart again; runs of their own, where an output does not have their rows."""
        if len(feeds) == 1:
            return [self.run(feeds[0])]
        rows = [len(next(iter(feed.values()))) for feed in feeds]
        joined = self.run({name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
        if any(array.shape[:1] != (sum(rows),) for array in joined.values()):
            return [self.run(feed) for feed in feeds]
        cuts = np.cumsum(rows)[:-1]
        parts = {name: np.split(array, cuts) for name, array in joined.items()}
        return [{name: pieces[number] for name, pieces in parts.items()} for number in range(len(feeds))]


def load(folder: str | Path) -> FixedModel:
    """Open a folder that ``unlag fix`` wrote.

    Raises:
        UsageError: it is no such folder, or its runtime can't be used here.
    """
    place = Path(folder)
    variant, threads = deployed_variant(place)
    return FixedModel(variant, threads, read_deployment(place).replicas)


def _alike(feeds: Sequence[Feed]) -> list[list[int]]:
    """Indices of feeds whose inputs have the same shapes and types but for the first axis."""
    groups: dict[tuple[tuple[str, tuple[int, ...], str], ...], list[int]] = {}
    for index, feed in enumerate(feeds):
        key = tuple(sorted((name, array.shape[1:], array.dtype.str) for name, array in feed.items()))
        groups.setdefault(key, []).append(index)
    return list(groups.values())
