"""What a user's own times have to do with the measured ones. Pure arithmetic on milliseconds."""

from __future__ import annotations

import math

from unlag.errors import UsageError
from unlag.observe.evidence import Claim

AGREEMENT = 1.10
"""Times and ratios within 10 % agree: a second run of the same benchmark on another day differs by that much."""

TOLERANCE = 1.15
"""A way of measuring gives the claimed times if it comes within 15 %: agreement, and the noise of two short rounds."""

NEARER = 0.5
"""It must also leave at most half of the (logarithmic) distance, or else a way that changes nothing would do."""

RUN_COUNTS = (1, 2, 3, 5, 10, 20, 50, 100)
"""Runs over which people take a mean."""


def check_positive(claim: Claim) -> None:
    """Refuse a claim without a time.

    Raises:
        UsageError: no time was given, or one is not above zero.
    """
    given = [time for time in (claim.standard_ms, claim.variant_ms) if time is not None]
    if not given or not all(math.isfinite(time) and time > 0 for time in given):
        raise UsageError("a claimed time must be a number of milliseconds above zero", hint="--claim-variant-ms 75.4")


def off_by(claim: Claim, standard_ms: float | None, variant_ms: float | None) -> float:
    """How far two times are from the claimed ones: the largest ratio, at least 1, over both times and their ratio.

    Args:
        claim: what was claimed.
        standard_ms: of the standard, where it was claimed.
        variant_ms: of the variant, where it was claimed.
    """
    logs = []
    for claimed, other in ((claim.standard_ms, standard_ms), (claim.variant_ms, variant_ms)):
        if claimed is not None:
            logs.append(math.log(other / claimed) if other else math.inf)
    if len(logs) > 1 and all(map(math.isfinite, logs)):
        logs.append(logs[1] - logs[0])
    largest = max(abs(log) for log in logs)
    return math.exp(largest) if largest < 700 else math.inf


def reproduces(off: float, measured_off: float) -> bool:
    """Whether times that are ``off`` give the claim, where the measured ones are ``measured_off``."""
    return off <= TOLERANCE and math.log(off) <= NEARER * math.log(measured_off)


def mean_with_load(runs: int, latency_ms: float, first_run_ms: float, load_ms: float) -> float:
    """Mean time of ``runs`` runs from cold, the session's loading counted in."""
    return mean_from_cold(runs, latency_ms, first_run_ms) + load_ms / runs


def mean_from_cold(runs: int, latency_ms: float, first_run_ms: float) -> float:
    """Mean time of ``runs`` runs without a warm-up."""
    return (first_run_ms + (runs - 1) * latency_ms) / runs
