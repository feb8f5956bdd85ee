"""Ways of measuring whose times follow from the comparison's raw ones, without another run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from unlag.errors import UnlagError
from unlag.measure.bench import Bench
from unlag.measure.compare import STANDARD, VARIANT
from unlag.measure.comparison import Comparison, Measured
from unlag.measure.contest import Sample
from unlag.measure.statistics import Floats
from unlag.observe.claimed_times import RUN_COUNTS, mean_from_cold, mean_with_load
from unlag.observe.evidence import Claim

SUMMED_RUNS = (10, 100)
"""Of how many runs the whole time may have been taken for that of one; 1000 would be a confusion of units."""

Statistic = Callable[[Floats], float]

STATISTICS: tuple[tuple[str, str, Statistic], ...] = (
    ("fastest_run", "the fastest run instead of the median", lambda times_ms: float(times_ms.min())),
    ("mean_run", "the mean of all runs, disturbed ones too", lambda times_ms: float(times_ms.mean())),
    ("percentile_95", "the 95th percentile", lambda times_ms: float(np.percentile(times_ms, 95))),
    ("slowest_run", "the slowest run", lambda times_ms: float(times_ms.max())),
)


class NotTriedError(UnlagError):
    """A way of measuring that doesn't apply to this case."""


@dataclass(frozen=True)
class Attempt:
    """Times that a way of measuring gives; of several with one id, the nearest to the claim is kept."""

    id: str
    title: str
    standard_ms: float | None
    variant_ms: float | None
    apart: bool = True
    """Whether one side alone may have been measured so."""
    measured: bool = False


@dataclass(frozen=True)
class Way:
    """One way of measuring, tried when it is called with a part of the bench."""

    id: str
    title: str
    attempts: Callable[[Bench], Iterator[Attempt]]


def recomputed_ways(comparison: Comparison, claim: Claim) -> tuple[Way, ...]:
    """All ways that need nothing but the comparison."""
    return (
        Way("load_counted", "load counted into the mean", lambda _: _load_counted(comparison)),
        Way("no_warm_up", "no warm-up", lambda _: _no_warm_up(comparison)),
        *(_statistic(comparison, *statistic) for statistic in STATISTICS),
        Way("item_or_batch", "time of an item and of a batch confused", lambda b: _item_or_batch(comparison, b)),
        Way("sum_of_runs", "the time of several runs together", lambda _: _sum_of_runs(comparison)),
        Way("seconds", "seconds taken for milliseconds", lambda _: _scaled(comparison, "seconds", 1e-3)),
        Way("microseconds", "microseconds taken for milliseconds", lambda _: _scaled(comparison, "microseconds", 1e3)),
        Way("swapped", "standard and variant swapped", lambda _: _swapped(comparison, claim)),
        Way("one_model_twice", "one model timed twice", lambda _: _one_model_twice(comparison)),
    )


def _load_counted(comparison: Comparison) -> Iterator[Attempt]:
    for runs in RUN_COUNTS:

        def time_ms(side: Measured, runs: int = runs) -> float:
            return mean_with_load(runs, side.latency_ms.median, side.first_run_ms, side.load_ms)

        where = f"the mean of {runs} runs" if runs > 1 else "the only run"
        yield _of_sides(comparison, "load_counted", f"load and first run counted into {where}", time_ms)


def _no_warm_up(comparison: Comparison) -> Iterator[Attempt]:
    for runs in RUN_COUNTS:

        def time_ms(side: Measured, runs: int = runs) -> float:
            return mean_from_cold(runs, side.latency_ms.median, side.first_run_ms)

        title = f"no warm-up, first run counted into the mean of {runs} runs" if runs > 1 else "the first run alone"
        yield _of_sides(comparison, "no_warm_up", title, time_ms)


def _of_sides(comparison: Comparison, id_: str, title: str, time_ms: Callable[[Measured], float]) -> Attempt:
    return Attempt(id_, title, time_ms(comparison.standard), time_ms(comparison.variant))


def _statistic(comparison: Comparison, id_: str, title: str, statistic: Statistic) -> Way:
    def attempts(_bench: Bench) -> Iterator[Attempt]:
        ours, theirs = (statistic(_all_runs_ms(comparison.samples[name])) for name in (STANDARD, VARIANT))
        yield Attempt(id_, title, ours, theirs)

    return Way(id_, title, attempts)


def _all_runs_ms(sample: Sample) -> Floats:
    return np.concatenate([np.asarray(turn.times_ns, np.float64) for turn in sample.turns]) / 1e6


def _item_or_batch(comparison: Comparison, bench: Bench) -> Iterator[Attempt]:
    batch = next((array.shape[0] for array in bench.workload.feed.values() if array.ndim), 1)
    if batch == 1:
        raise NotTriedError("the batch is one item")
    yield from _scaled(comparison, "item_or_batch", 1 / batch, f"time of one item of the batch of {batch}")
    yield from _scaled(comparison, "item_or_batch", batch, f"time of {batch} batches of {batch}, one for each item")


def _sum_of_runs(comparison: Comparison) -> Iterator[Attempt]:
    for runs in SUMMED_RUNS:
        yield from _scaled(comparison, "sum_of_runs", runs, f"the time of {runs} runs together")


def _scaled(comparison: Comparison, id_: str, factor: float, title: str = "") -> Iterator[Attempt]:
    words = title or f"{id_} taken for milliseconds"
    yield _of_sides(comparison, id_, words, lambda side: side.latency_ms.median * factor)


def _swapped(comparison: Comparison, claim: Claim) -> Iterator[Attempt]:
    if claim.slowdown is None:
        raise NotTriedError("one time alone can't be swapped")
    ours, theirs = comparison.standard.latency_ms.median, comparison.variant.latency_ms.median
    yield Attempt("swapped", "standard and variant swapped", theirs, ours, apart=False)


def _one_model_twice(comparison: Comparison) -> Iterator[Attempt]:
    for name, side in ((STANDARD, comparison.standard), (VARIANT, comparison.variant)):
        time_ms = side.latency_ms.median
        yield Attempt("one_model_twice", f"the {name}'s file timed on both sides", time_ms, time_ms, apart=False)
