"""Intervals and verdicts. Pure functions of raw numbers; no clock, no process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SpeedVerdict = Literal["slower", "faster", "same", "inconclusive"]
AccuracyVerdict = Literal["worse", "better", "same", "not_measured"]

SMALLEST_EFFECT = 0.01
"""Ratios within ±1 % of 1 are never called faster or slower: code alignment alone moves a loop by that much."""

WIDEST_SAME = 0.05
"""A noise floor beyond ±5 % can't support the verdict "same"."""

CONFIDENCE = 0.95

FEWEST_RANKED = 6
"""With five values, the signed-rank test's widest interval holds 93.75 % only."""


class Interval(msgspec.Struct, frozen=True):
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        """The interval of ``factor`` times the quantity."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(self.estimate * factor, ends[0], ends[1])

    def widened(self, deviation: float) -> Interval:
        """The interval of a ratio that another process of the same model may give: ``deviation`` is a logarithm."""
        below = math.hypot(math.log(self.estimate / self.low) if self.low > 0 else math.inf, deviation)
        above = math.hypot(math.log(self.high / self.estimate), deviation)
        return Interval(self.estimate, self.estimate * math.exp(-below), self.estimate * _exp(above))

    def plus(self, other: Interval) -> Interval:
        """The interval of a sum of independent quantities: half-widths add as squares."""
        estimate = self.estimate + other.estimate
        below = math.hypot(self.estimate - self.low, other.estimate - other.low)
        above = math.hypot(self.high - self.estimate, other.high - other.estimate)
        return Interval(estimate, estimate - below, estimate + above)

    def minus(self, other: Interval) -> Interval:
        """The interval of a difference of independent quantities."""
        return self.plus(other.scaled(-1.0))


def mean_interval(values: Sequence[float] | Floats) -> Interval:
    """Student's t interval of the mean; one value has no interval and gets an infinite one."""
    data = np.asarray(values, np.float64)
    if data.size == 0:
        raise ValueError("an interval needs at least one value")
    center = float(data.mean())
    if data.size == 1:
        return Interval(center, -math.inf, math.inf)
    half = student_t(data.size - 1) * float(data.std(ddof=1)) / math.sqrt(data.size)
    return Interval(center, center - half, center + half)


def student_t(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit  # noqa: PLC0415 - scipy takes half a second to import

    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def center_interval(values: Sequence[float] | Floats) -> Interval:
    """Interval of the center of values that may hold outliers: other guests of a machine slow whole rounds down.

    From six values on, Hodges and Lehmann's estimate (the median of all pairs' means) with the interval that belongs
    to Wilcoxon's signed-rank test; below, where that test can't reach 95 %, Student's.

    Source: Hodges and Lehmann, "Estimates of location based on rank tests", 1963.
    """
    data = np.sort(np.asarray(values, np.float64))
    if data.size < FEWEST_RANKED:
        return mean_interval(data)
    first, second = np.triu_indices(data.size)
    means = np.sort((data[first] + data[second]) / 2)
    outside = _signed_rank_quantile(data.size)
    return Interval(float(np.median(means)), float(means[outside]), float(means[-1 - outside]))


def _signed_rank_quantile(count: int) -> int:
    """How many pairs' means may lie outside of each end: the largest k with P(W ≤ k) ≤ 2.5 %, exactly."""
    ways = np.ones(1)
    for rank in range(1, count + 1):
        longer = np.zeros(ways.size + rank)
        longer[: ways.size] += ways
        longer[rank:] += ways
        ways = longer
    below = np.cumsum(ways) / ways.sum()
    return int(np.searchsorted(below, (1 - CONFIDENCE) / 2, side="right")) - 1


def ratio_interval(numerator: Sequence[float] | Floats, denominator: Sequence[float] | Floats) -> Interval:
    """Interval of a ratio of times, from pairs measured in the same round.

    Works on logarithms, so that swapping the two sides inverts the result exactly.
    """
    logs = np.log(np.asarray(numerator, np.float64)) - np.log(np.asarray(denominator, np.float64))
    interval = center_interval(logs)
    return Interval(*(_exp(end) for end in (interval.estimate, interval.low, interval.high)))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def band_of(noise: Interval) -> tuple[float, float]:
    """Ratios that noise alone can give, either way round: the control's interval, at least ±1 %."""
    return (
        min(noise.low, 1 / noise.high, 1 / (1 + SMALLEST_EFFECT)),
        max(noise.high, 1 / noise.low if noise.low > 0 else math.inf, 1 + SMALLEST_EFFECT),
    )


def speed_verdict(slowdown: Interval, noise: Interval) -> SpeedVerdict:
    """The verdict on a slowdown (variant / standard), given the control's ratio to the standard."""
    low, high = band_of(noise)
    if slowdown.low > high:
        return "slower"
    if slowdown.high < low:
        return "faster"
    quiet = high <= 1 + WIDEST_SAME and low >= 1 - WIDEST_SAME
    if quiet and low <= slowdown.low and slowdown.high <= high:
        return "same"
    return "inconclusive"


def paired_bootstrap(  # noqa: PLR0913 - what is resampled, and how
    score: Callable[[Floats, Floats], float],
    variant: Floats,
    standard: Floats,
    labels: Floats,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Interval of score(variant) − score(standard), both on the same resampled items (Efron, percentile method)."""
    rng = np.random.default_rng(seed)
    count = labels.shape[0]
    changes = np.empty(resamples)
    for k in range(resamples):
        pick = rng.integers(0, count, count)
        changes[k] = score(variant[pick], labels[pick]) - score(standard[pick], labels[pick])
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(changes, [tail, 100 - tail])
    return Interval(score(variant, labels) - score(standard, labels), float(low), float(high))


SMALLEST_ACCURACY_EFFECT = 0.05
"""Points; a change that rounds to 0.1 at most is not called worse or better, however many items show it."""


def accuracy_verdict(change: Interval) -> AccuracyVerdict:
    """Worse or better only where the whole interval says so; a change that is no number was not measured."""
    if math.isnan(change.estimate):
        return "not_measured"
    if change.high < -SMALLEST_ACCURACY_EFFECT:
        return "worse"
    if change.low > SMALLEST_ACCURACY_EFFECT:
        return "better"
    return "same"
