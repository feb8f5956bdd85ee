"""A slow model run on many feeds by several processes at once, a core each: for results, never for times that count."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np

from unlag.measure import exchange
from unlag.measure.process import WorkerProcess
from unlag.measure.progress import Progress, silent
from unlag.model.variant import Variant
from unlag.model.workload import Feed, Reduction, Rows

PATIENCE_S = 3600.0
"""For one request: a simulator may take minutes for a run; a hang is still noticed."""
FEEDS_AT_ONCE = 4
"""So many are asked for together, so that progress is seen."""

Result = TypeVar("Result")


class Spread:
    """Processes that all run one model; each opens it when it is first needed, and is ended by ``end``."""

    def __init__(self, name: str, variant: Variant, cores: Sequence[int], *, progress: Progress = silent) -> None:
        self._name = name
        self._variant = variant
        self._cores = tuple(cores)
        self._progress = progress
        self._counting = Lock()
        self._done = 0.0

    def run_s(self, feed: Feed) -> float:
        """Seconds of one run on one core, after one of warm-up.

        Raises:
            ContenderError: the model can't be opened or run.
        """

        def ask(process: WorkerProcess, folder: Path, _count: int) -> float:
            request = exchange.TimeFeeds(str(folder / "feed"))
            return process.ask(request, exchange.FeedsTimed, PATIENCE_S).time_ns / 1e9

        return self._with_process(self._cores[0], [feed], ask, cold=False)

    def rows(self, feeds: Sequence[Feed], reduction: Reduction) -> Rows:
        """The model's reduced first outputs for all feeds, [rows, width], in the feeds' order.

        Raises:
            ContenderError: the model can't be opened or run.
        """

        def ask(process: WorkerProcess, folder: Path, count: int) -> list[Rows]:
            prepared = process.ask(exchange.Prepare(str(folder / "feed")), exchange.Prepared, PATIENCE_S)
            out, parts = folder / "rows.npy", []
            for start in range(0, prepared.runs, FEEDS_AT_ONCE):
                request = exchange.Evaluate(start, start + FEEDS_AT_ONCE, reduction, str(out))
                process.ask(request, exchange.Done, PATIENCE_S)
                parts.append(np.load(out, allow_pickle=False).astype(np.float32, copy=False))
                share = min(FEEDS_AT_ONCE, prepared.runs - start) / prepared.runs
                self._count(share * count, len(feeds))
            return parts

        return np.concatenate([part for parts in self._in_parts(feeds, ask) for part in parts])

    def answers(self, feeds: Sequence[Feed]) -> list[Feed]:
        """All outputs for all feeds, in their order.

        Raises:
            ContenderError: the model can't be opened or run.
        """

        def ask(process: WorkerProcess, folder: Path, _count: int) -> list[Feed]:
            out = folder / "answers"
            process.ask(exchange.Answer(str(folder / "feed"), str(out)), exchange.Done, PATIENCE_S)
            return exchange.read_feeds(out)

        return [answer for part in self._in_parts(feeds, ask) for answer in part]

    def _in_parts(self, feeds: Sequence[Feed], ask: Callable[[WorkerProcess, Path, int], Result]) -> list[Result]:
        """What each process answers for its share of the feeds."""
        self._done = 0.0
        share = -(-len(feeds) // len(self._cores))
        parts = [list(feeds[start : start + share]) for start in range(0, len(feeds), share)]
        with ThreadPoolExecutor(len(parts), thread_name_prefix="unlag-spread") as pool:
            asked = [
                pool.submit(self._with_process, core, part, ask) for core, part in zip(self._cores, parts, strict=False)
            ]
            return [one.result() for one in asked]

    def _with_process(
        self, core: int, feeds: Sequence[Feed], ask: Callable[[WorkerProcess, Path, int], Result], *, cold: bool = True
    ) -> Result:
        process = WorkerProcess(self._name)
        try:
            with tempfile.TemporaryDirectory(prefix="unlag-") as name:
                folder = Path(name)
                exchange.write_feeds(folder / "feed", feeds)
                request = exchange.Open(self._variant, 1, (core,), str(folder / "feed"), cold=cold)
                process.ask(request, exchange.Opened, PATIENCE_S)
                return ask(process, folder, len(feeds))
        finally:
            process.end()

    def _count(self, done: float, total: int) -> None:
        with self._counting:
            self._done += done
            self._progress(f"{self._name}: {100 * self._done / total:.0f} %")
