"""How long one model takes for the same rows, cut into batches in several ways, that take turns in one process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from unlag.measure import exchange
from unlag.measure.bench import Bench
from unlag.measure.monitor import disturbance, take_usage
from unlag.measure.process import WorkerProcess
from unlag.measure.schedule import orders
from unlag.model.variant import Variant
from unlag.model.workload import Feed

FEWEST_ROUNDS = 2
"""With fewer undisturbed rounds the disturbed ones count too, and the result says so."""


class BatchTimes(msgspec.Struct, frozen=True):
    """Milliseconds of each counted round for all batches of a way, by its name."""

    times_ms: dict[str, tuple[float, ...]]
    quiet: bool


def time_batches(bench: Bench, variant: Variant, ways: Mapping[str, Sequence[Feed]], rounds: int) -> BatchTimes:
    """Run every way's batches once to warm up, then in rounds, at most twice as many as are wanted.

    Raises:
        ContenderError: the model can't be opened, or can't run one of the batches.
    """
    protocol, names = bench.protocol, list(ways)
    patience_s = max(3600.0, protocol.patience_s)
    played: list[tuple[dict[str, float], bool]] = []
    process = WorkerProcess("the model in batches")
    try:
        with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
            files = {name: Path(folder) / str(number) for number, name in enumerate(names)}
            for name, feeds in ways.items():
                exchange.write_feeds(files[name], feeds)
            opening = exchange.Open(variant, bench.threads, bench.cores, str(files[names[0]]))
            process.ask(opening, exchange.Opened, protocol.patience_s)
            for name in names:
                process.ask(exchange.TimeFeeds(str(files[name])), exchange.FeedsTimed, patience_s)
            order_of = orders(len(names), protocol.seed)
            while len(played) < 2 * rounds and sum(good for _, good in played) < rounds:
                order = [names[index] for index in next(order_of)]
                played.append(_round(process, bench, {name: files[name] for name in order}, patience_s))
    finally:
        process.end()
    undisturbed = [times for times, good in played if good]
    quiet = len(undisturbed) >= min(FEWEST_ROUNDS, rounds)
    counted = undisturbed if quiet else [times for times, _ in played]
    return BatchTimes({name: tuple(times[name] for times in counted) for name in names}, quiet)


def _round(
    process: WorkerProcess, bench: Bench, files: Mapping[str, Path], patience_s: float
) -> tuple[dict[str, float], bool]:
    """Each way's time, and whether nothing disturbed any of them."""
    times_ms, good = {}, True
    for name, file in files.items():
        own_before, before = time.process_time(), take_usage(bench.cores)
        timed = process.ask(exchange.TimeFeeds(str(file)), exchange.FeedsTimed, patience_s)
        after, own_s = take_usage(bench.cores), time.process_time() - own_before
        times_ms[name] = timed.time_ns / 1e6
        good = good and disturbance(before, after, timed.cpu_s + own_s) is None
    return times_ms, good
