"""The comparison: what a contest between a standard and a variant says, in the JSON that scripts rely on."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.errors import Missing
from unlag.measure.contest import Sample
from unlag.measure.host import Host
from unlag.measure.monitor import MonitorLog
from unlag.measure.statistics import AccuracyVerdict, Interval, SpeedVerdict
from unlag.model.workload import Agreement
from unlag.runtimes.contract import Placement


class Latency(msgspec.Struct, frozen=True):
    """Steady time of one run."""

    median: float
    low: float
    high: float


class Accuracy(msgspec.Struct, frozen=True):
    """A metric's name and value, in points."""

    metric: str
    value: float


class Measured(msgspec.Struct, frozen=True):
    """One side of a comparison."""

    spec: str
    runtime: str
    latency_ms: Latency
    accuracy: Accuracy | None
    size_bytes: int
    peak_memory_bytes: int
    load_ms: float
    first_run_ms: float
    warmup_runs: int
    steady: bool
    placement: Placement | Missing


class Verdict(msgspec.Struct, frozen=True):
    """What the numbers allow to be said."""

    speed: SpeedVerdict
    accuracy: AccuracyVerdict

    @property
    def lags(self) -> bool:
        """Whether the variant is slower or less accurate than the standard."""
        return self.speed == "slower" or self.accuracy == "worse"


class AskedFor(msgspec.Struct, frozen=True):
    """What of the case another command has to be told as well, so that it measures the same."""

    shapes: tuple[str, ...]
    """Batch x sequence; the workload or the model may fix another one."""
    dims: dict[str, int] = {}
    threads: int | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Standard against variant on one workload and shape. ``slowdown`` above 1 means that the variant lags."""

    schema: int = 1
    kind: Literal["comparison"] = "comparison"
    host: Host
    workload: str
    shape: str
    standard: Measured
    variant: Measured
    slowdown: Interval
    noise: Interval
    accuracy_change: Interval | None
    """Points, variant minus standard, with its paired bootstrap interval."""
    agreement: Agreement | None
    verdict: Verdict
    rounds: int
    """Rounds that count."""
    disturbed_rounds: int
    monitor: MonitorLog | Missing
    samples: dict[str, Sample]
    warnings: tuple[str, ...]
    other_shapes: tuple[Comparison, ...] = ()
    """The same comparison at the further shapes that were asked for."""
    asked_for: AskedFor | None = None
    """Nothing in records of an earlier version."""

    @property
    def gap_ms(self) -> Interval:
        """Variant's time minus the standard's."""
        variant, standard = (
            Interval(side.median, side.low, side.high) for side in (self.variant.latency_ms, self.standard.latency_ms)
        )
        return variant.minus(standard)
