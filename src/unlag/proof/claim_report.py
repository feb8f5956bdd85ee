"""What became of the user's own times, in the JSON that scripts rely on."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.measure.statistics import Interval
from unlag.observe.evidence import Claim

Sides = Literal["both", "standard", "variant"]
"""Which sides were measured in another way; the other one as unlag measures."""


class ClaimTrial(msgspec.Struct, frozen=True):
    """Another way of measuring that was tried, and the times that it gives."""

    id: str
    title: str
    """Such as ``load counted into the mean of 10 runs``."""
    sides: Sides
    standard_ms: float | None
    """Nothing where the standard's time was not claimed."""
    variant_ms: float | None
    off_by: float
    """Largest ratio, at least 1, between a time (or the ratio of both) and the claimed one."""
    reproduces: bool
    """Whether it gives everything that was claimed."""
    measured: bool
    """Measured anew; otherwise recomputed from the comparison's raw times."""

    @property
    def slowdown(self) -> float | None:
        """Variant over standard."""
        return self.variant_ms / self.standard_ms if self.variant_ms and self.standard_ms else None


class SkippedTrial(msgspec.Struct, frozen=True):
    """A way of measuring that could not be tried, and why."""

    id: str
    title: str
    reason: str


class ClaimReport(msgspec.Struct, frozen=True):
    """Whether the user's times agree with the measured ones and, if not, what gives them."""

    claim: Claim
    standard_ms: Interval
    """Measured."""
    variant_ms: Interval
    slowdown: Interval
    agrees: bool
    """Everything claimed lies in the measured interval or within 10 % of the measured time."""
    ratio_agrees: bool | None
    """The same for the ratio alone; nothing unless both times were claimed."""
    trials: tuple[ClaimTrial, ...]
    """Those that reproduce the claim on both sides first, then on one side, then the others, each nearest first."""
    skipped: tuple[SkippedTrial, ...]
    conclusion: str

    @property
    def best(self) -> tuple[ClaimTrial, ...]:
        """Trials that give everything that was claimed, the likeliest first."""
        return tuple(trial for trial in self.trials if trial.reproduces)
