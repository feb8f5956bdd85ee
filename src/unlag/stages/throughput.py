"""Rows a second: how many replicas of the model, with how many threads each, use this machine best.

Standard and fixed model are tried in the same ways, so that the comparison is one between two machines that are both
used well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import psutil

from unlag.measure.bench import Bench, quick
from unlag.measure.comparison import Comparison
from unlag.measure.placement import replicas_to_try
from unlag.measure.statistics import Interval, mean_interval, ratio_interval
from unlag.measure.throughput import Crew, CrewRate, RaceResult, race
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.stages.fixed import Rate, Rejected, Throughput

STANDARD, FIXED = "standard", "fixed"

AVAILABLE_SHARE = 0.5
"""Of the memory that is free may all processes of a race take."""
ONE_LAUNCH = 1
AS_MUCH = 0.02
"""Rates that differ by less are taken for the same: launches of one crew differ by as much."""


@dataclass(frozen=True)
class _Ways:
    """All crews by name, and what they need."""

    bench: Bench
    crews: Mapping[str, Crew]
    needed_bytes: Mapping[str, int]
    limit_bytes: float

    def fit(self, names: Iterable[str]) -> bool:
        """Whether these may be in memory together."""
        return sum(self.needed_bytes[name] for name in names) <= self.limit_bytes

    def race(self, names: Iterable[str]) -> RaceResult:
        """These against each other."""
        protocol = quick(self.bench.protocol, self.bench.case.rounds)
        protocol = msgspec.structs.replace(protocol, launches=ONE_LAUNCH)
        return race({name: self.crews[name] for name in names}, self.bench, protocol)

    def groups(self) -> list[list[str]]:
        """Those that fit into memory at all, in groups that do so together, in their order."""
        groups: list[list[str]] = []
        for name in filter(lambda name: self.fit([name]), self.crews):
            if groups and self.fit([*groups[-1], name]):
                groups[-1].append(name)
            else:
                groups.append([name])
        return groups

    def refused(self) -> list[Rejected]:
        """Those that don't, and what they would need."""
        limit = f"{self.limit_bytes / 1e9:.1f} GB may be used"
        return [
            Rejected(name, f"it would take {self.needed_bytes[name] / 1e9:.1f} GB of memory, and {limit}")
            for name in self.crews
            if not self.fit([name])
        ]


def measure_throughput(bench: Bench, fixed: Variant, result: Comparison) -> Throughput | None:
    """Let replicas of standard and fixed model work beside each other, in every way to share the cores out.

    Args:
        bench: the machine and what is run.
        fixed: the model that goes out.
        result: the comparison of both, for what one process of each takes.

    Returns:
        Nothing, where one of the two could not be measured in any way.

    Raises:
        ContenderError: a replica died while it worked.
    """
    cores = len(bench.cores) if bench.case.threads is None else min(bench.case.threads, len(bench.cores))
    sides = {STANDARD: bench.case.standard, FIXED: fixed}
    peaks = {STANDARD: result.standard.peak_memory_bytes, FIXED: result.variant.peak_memory_bytes}
    crews: dict[str, Crew] = {}
    needed_bytes: dict[str, int] = {}
    for replicas in replicas_to_try(cores):
        for side, variant in sides.items():
            name = f"{side}, {replicas} × {cores // replicas}"
            crews[name] = Crew(variant, replicas, cores // replicas)
            needed_bytes[name] = replicas * peaks[side]
    ways = _Ways(bench, crews, needed_bytes, AVAILABLE_SHARE * psutil.virtual_memory().available)
    return _judged(ways, [ways.race(group) for group in ways.groups()], cores)


def _judged(ways: _Ways, races: list[RaceResult], cores: int) -> Throughput | None:
    rates = {name: rate for ran in races for name, rate in ran.crews.items()}
    standard, fixed = (_best(side, rates) for side in (STANDARD, FIXED))
    if standard is None or fixed is None:
        return None
    best = {standard, fixed}
    if not any(best <= ran.crews.keys() for ran in races) and ways.fit(best):  # all at once did not fit
        races = [*races, ways.race([standard, fixed])]
        rates |= races[-1].crews
    crews, rows = ways.crews, _rows(ways.bench.workload.feed)
    failed = [Rejected(name, reason) for ran in races for name, reason in ran.failed.items()]

    def of(side: str) -> tuple[Rate, ...]:
        return tuple(_rate(crews[name], rates[name], rows) for name in crews if name in rates and _is_of(side, name))

    return Throughput(
        cores=cores,
        batch=rows,
        standard=of(STANDARD),
        fixed=of(FIXED),
        replicas=crews[fixed].replicas,
        threads=crews[fixed].threads,
        gain=_gain(
            rates[fixed].runs_per_s, rates[standard].runs_per_s, paired=any(best <= ran.crews.keys() for ran in races)
        ),
        refused=(*ways.refused(), *failed),
        pinned=all(rate.pinned for rate in rates.values()),
        quiet=all(ran.quiet for ran in races),
    )


def _gain(fixed: Sequence[float], standard: Sequence[float], *, paired: bool) -> Interval:
    """Ratio of two rates; where they were not measured in the same rounds, as wide as both intervals allow."""
    if paired:
        return ratio_interval(fixed, standard)
    ours, theirs = mean_interval(fixed), mean_interval(standard)
    return Interval(ours.estimate / theirs.estimate, ours.low / theirs.high, ours.high / theirs.low)


def _best(side: str, rates: Mapping[str, CrewRate]) -> str | None:
    """The way that gets most done; of two that get as much done the one with fewer replicas: it takes less memory."""
    own = [name for name in rates if _is_of(side, name)]
    if not own:
        return None
    got = {name: mean_interval(rates[name].runs_per_s).estimate for name in own}
    return next(name for name in own if got[name] >= (1 - AS_MUCH) * max(got.values()))


def _rate(crew: Crew, rate: CrewRate, rows: int) -> Rate:
    return Rate(crew.replicas, crew.threads, mean_interval(rate.runs_per_s).scaled(rows), rate.memory_bytes)


def _rows(feed: Feed) -> int:
    """Rows of a run: the first axis of the first input that has one."""
    return next((len(array) for array in feed.values() if array.ndim), 1)


def _is_of(side: str, name: str) -> bool:
    return name.startswith(f"{side},")
