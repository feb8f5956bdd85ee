"""Times of the repaired copies, tied to anchors of the same rounds, so that batches measured apart add up. Pure.

A machine's speed drifts between two batches, and not by the same factor for every model: one that waits for memory
drifts apart from one that computes. So each copy's time is its ratio to the *nearer* of two anchors, the variant
and the fully repaired model, both of which run in every batch. Its time in milliseconds is that ratio times the
anchor's own: the variant's from the comparison, the repaired model's from all rounds of all batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from unlag.measure.statistics import Floats, Interval, student_t

Removed = frozenset[str]
"""Ids of the causes that a copy is free of."""

STRAY = 3.0
"""Deviations from the median beyond which a round is a stray one."""

NOTHING: Removed = frozenset()
"""The variant as it is."""
STANDARD: Removed = frozenset({"the standard"})
"""Not a set of causes: the standard's own key."""


@dataclass(frozen=True)
class _Measured:
    """A ratio to one anchor, round by round."""

    ratios: Floats
    to_repaired: bool


@dataclass
class Times:
    """Steady times by set of removed causes."""

    variant_ms: float
    everything: Removed
    """All suspects: the key of the fully repaired model."""
    _measured: dict[Removed, _Measured] = field(default_factory=dict)
    _repaired: Floats = field(default_factory=lambda: np.empty(0))
    """Ratios of the repaired model to the variant in all rounds so far."""
    _aliases: dict[Removed, Removed] = field(default_factory=dict)

    def add_batch(self, medians_ms: Mapping[Removed, Floats]) -> None:
        """Take in one contest: round medians of ``NOTHING``, ``everything``, ``STANDARD`` and some copies."""
        variant, repaired = medians_ms[NOTHING], medians_ms[self.everything]
        self._repaired = np.concatenate([self._repaired, winsorized(repaired / variant)])
        for key, own in medians_ms.items():
            if key in {NOTHING, self.everything}:
                continue
            near_repaired = _distance(own, repaired) < _distance(own, variant)
            ratios = winsorized(own / (repaired if near_repaired else variant))
            known = self._measured.get(key)
            if known is not None and known.to_repaired == near_repaired:
                ratios = np.concatenate([known.ratios, ratios])
            self._measured[key] = _Measured(ratios, near_repaired)

    def same_as(self, key: Removed, other: Removed) -> None:
        """Remember that removing ``key`` gives the same copy as removing ``other``."""
        self._aliases[key] = other

    def __contains__(self, key: Removed) -> bool:
        """Whether the copy's time is known."""
        key = self._aliases.get(key, key)
        return key == NOTHING or key in self._measured or (key == self.everything and self._repaired.size > 0)

    def combine(self, coefficients: Mapping[Removed, float]) -> Interval:
        """Interval of a weighted sum of times, in milliseconds."""
        estimate, variance, on_repaired, fewest = 0.0, 0.0, 0.0, math.inf
        for key, weight in self._summed(coefficients).items():
            if key == NOTHING:
                estimate += weight * self.variant_ms
            elif key == self.everything:
                on_repaired += weight
            else:
                measured = self._measured[key]
                anchor_ms = self._repaired_ms if measured.to_repaired else self.variant_ms
                ratio = float(measured.ratios.mean())
                variance += (weight * anchor_ms) ** 2 * _variance_of_mean(measured.ratios)
                fewest = min(fewest, measured.ratios.size)
                if measured.to_repaired:
                    on_repaired += weight * ratio
                else:
                    estimate += weight * ratio * self.variant_ms
        if on_repaired:
            estimate += on_repaired * self._repaired_ms
            variance += (on_repaired * self.variant_ms) ** 2 * _variance_of_mean(self._repaired)
            fewest = min(fewest, self._repaired.size)
        return _interval(estimate, variance, fewest)

    def won_ms(self, wins: Mapping[Removed, float]) -> Interval:
        """Interval of a weighted sum of wins, a win being the variant's time minus the copy's."""
        coefficients = {removed: -weight for removed, weight in wins.items() if removed != NOTHING}
        coefficients[NOTHING] = -sum(coefficients.values())
        return self.combine(coefficients)

    @property
    def _repaired_ms(self) -> float:
        return float(self._repaired.mean()) * self.variant_ms

    def _summed(self, coefficients: Mapping[Removed, float]) -> dict[Removed, float]:
        """Coefficients by the copy that was measured for each key; what cancels is left out."""
        summed: dict[Removed, float] = {}
        for key, weight in coefficients.items():
            real = self._aliases.get(key, key)
            summed[real] = summed.get(real, 0.0) + weight
        return {key: weight for key, weight in summed.items() if abs(weight) > 1e-12}


def winsorized(ratios: Floats) -> Floats:
    """Ratios of one contest with stray rounds drawn in to ``STRAY`` deviations from the median.

    One round in which another guest of the machine took the cores would make the interval of all useless. The deviation
    is the median one times 1.4826, which is the standard deviation for normal noise (Huber, Robust Statistics, 1981).
    """
    center = float(np.median(ratios))
    deviation = 1.4826 * float(np.median(np.abs(ratios - center)))
    return np.clip(ratios, center - STRAY * deviation, center + STRAY * deviation)


def _distance(one: Floats, other: Floats) -> float:
    return abs(float(np.log(np.median(one) / np.median(other))))


def _variance_of_mean(values: Floats) -> float:
    return float(values.var(ddof=1)) / values.size if values.size > 1 else math.inf


def _interval(estimate: float, variance: float, rounds: float) -> Interval:
    if variance == 0:
        return Interval(estimate, estimate, estimate)
    half = student_t(int(rounds) - 1) * math.sqrt(variance) if rounds > 1 else math.inf
    return Interval(estimate, estimate - half, estimate + half)
