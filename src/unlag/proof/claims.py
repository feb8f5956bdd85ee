"""The user's own times against the measured ones and, where they differ, against those of other ways of measuring."""

from __future__ import annotations

import math
from collections.abc import Iterable

from unlag.errors import UnlagError
from unlag.measure.bench import Bench
from unlag.measure.compare import Compared
from unlag.measure.comparison import Comparison, Latency
from unlag.measure.statistics import Interval
from unlag.observe.claimed_times import AGREEMENT, check_positive, off_by, reproduces
from unlag.observe.evidence import Claim
from unlag.proof.claim_measured import measured_ways
from unlag.proof.claim_recomputed import Attempt, recomputed_ways
from unlag.proof.claim_report import ClaimReport, ClaimTrial, Sides, SkippedTrial

NAMED = 3
"""Ways that the conclusion names; the others stand in the table."""

_ONLY: dict[Sides, str] = {"both": "", "standard": ", for the standard only", "variant": ", for the variant only"}


def check_claim(bench: Bench, compared: Compared, claim: Claim) -> ClaimReport:
    """Try other ways of measuring until all were tried, unless the claim agrees with what was measured.

    A way that can't be tried is named with its reason.

    Raises:
        UsageError: the claim holds no time above zero.
    """
    check_positive(claim)
    comparison = compared.comparison
    agrees, ratio_agrees = _agreement(claim, comparison)
    trials: tuple[ClaimTrial, ...] = ()
    skipped: tuple[SkippedTrial, ...] = ()
    if not agrees:
        attempts, skipped = _try_all(bench, comparison, claim)
        trials = rank(attempts, claim, comparison)
    return ClaimReport(
        claim=claim,
        standard_ms=_interval(comparison.standard.latency_ms),
        variant_ms=_interval(comparison.variant.latency_ms),
        slowdown=comparison.slowdown,
        agrees=agrees,
        ratio_agrees=ratio_agrees,
        trials=trials,
        skipped=skipped,
        conclusion=_conclusion(claim, comparison, trials, agrees=agrees, ratio_agrees=ratio_agrees),
    )


def _agreement(claim: Claim, comparison: Comparison) -> tuple[bool, bool | None]:
    """Whether all that was claimed agrees, and whether the ratio does."""
    sides = ((claim.standard_ms, comparison.standard), (claim.variant_ms, comparison.variant))
    times = [_agree(time_ms, _interval(side.latency_ms)) for time_ms, side in sides if time_ms is not None]
    ratio = None if claim.slowdown is None else _agree(claim.slowdown, comparison.slowdown)
    return all(times) and ratio is not False, ratio


def _agree(claimed: float, measured: Interval) -> bool:
    known = math.isfinite(measured.low) and math.isfinite(measured.high)
    inside = known and measured.low <= claimed <= measured.high
    return inside or 1 / AGREEMENT <= claimed / measured.estimate <= AGREEMENT


def _interval(latency: Latency) -> Interval:
    return Interval(latency.median, latency.low, latency.high)


def _try_all(bench: Bench, comparison: Comparison, claim: Claim) -> tuple[list[Attempt], tuple[SkippedTrial, ...]]:
    ways = (*recomputed_ways(comparison, claim), *measured_ways(comparison, claim, bench))
    attempts: list[Attempt] = []
    skipped: list[SkippedTrial] = []
    for position, way in enumerate(ways):
        part = bench.within(position / len(ways), (position + 1) / len(ways))
        part.progress(f"trying how the claimed times were measured: {way.title}", 0.0)
        try:
            attempts += way.attempts(part)
        except (UnlagError, OSError) as error:
            reason = error.message if isinstance(error, UnlagError) else str(error)
            skipped.append(SkippedTrial(way.id, way.title, reason))
    return attempts, tuple(skipped)


def rank(attempts: Iterable[Attempt], claim: Claim, comparison: Comparison) -> tuple[ClaimTrial, ...]:
    """One trial for each id, those that give the claim first, then by nearness.

    Both sides may have been measured so, or one of them, which counts only where it gives the claim and both do not:
    with one side alone only one number is explained.
    """
    trials: dict[str, ClaimTrial] = {}
    for attempt in attempts:
        for trial in _by_sides(attempt, claim, comparison):
            known = trials.get(attempt.id)
            if known is None or _order(trial) < _order(known):
                trials[attempt.id] = trial
    return tuple(sorted(trials.values(), key=_order))


def _order(trial: ClaimTrial) -> tuple[bool, bool, float]:
    return not trial.reproduces, trial.sides != "both", trial.off_by


def _by_sides(attempt: Attempt, claim: Claim, comparison: Comparison) -> list[ClaimTrial]:
    standard_ms, variant_ms = comparison.standard.latency_ms.median, comparison.variant.latency_ms.median
    measured_off = off_by(claim, standard_ms, variant_ms)
    tried: dict[Sides, tuple[float | None, float | None]] = {"both": (attempt.standard_ms, attempt.variant_ms)}
    if attempt.apart and claim.slowdown is not None:
        tried["standard"] = attempt.standard_ms, variant_ms
        tried["variant"] = standard_ms, attempt.variant_ms
    return [_trial(attempt, sides, claim, times_ms, measured_off) for sides, times_ms in tried.items()]


def _trial(
    attempt: Attempt, sides: Sides, claim: Claim, times_ms: tuple[float | None, float | None], measured_off: float
) -> ClaimTrial:
    off = off_by(claim, *times_ms)
    return ClaimTrial(
        id=attempt.id,
        title=attempt.title + _ONLY[sides],
        sides=sides,
        standard_ms=None if claim.standard_ms is None else times_ms[0],
        variant_ms=None if claim.variant_ms is None else times_ms[1],
        off_by=off,
        reproduces=reproduces(off, measured_off),
        measured=attempt.measured,
    )


def _conclusion(
    claim: Claim, comparison: Comparison, trials: tuple[ClaimTrial, ...], *, agrees: bool, ratio_agrees: bool | None
) -> str:
    measured = _times(
        None if claim.standard_ms is None else comparison.standard.latency_ms.median,
        None if claim.variant_ms is None else comparison.variant.latency_ms.median,
    )
    claimed = _times(claim.standard_ms, claim.variant_ms)
    if agrees:
        return f"What was claimed ({claimed}) agrees with what was measured ({measured})."
    start = f"What was claimed ({claimed}) does not agree with what was measured ({measured}):"
    best = [trial for trial in trials if trial.reproduces]
    if best:
        ways = "; or ".join(f"{trial.title} ({_times(trial.standard_ms, trial.variant_ms)})" for trial in best[:NAMED])
        doubt = "; one time alone is easily met by chance" if claim.slowdown is None else ""
        return f"{start} it is what one gets with {ways}{doubt}."
    nothing = f"{start} no way of measuring that was tried gives these numbers"
    if not ratio_agrees or claim.slowdown is None:
        return f"{nothing}."
    return (
        f"{nothing}, but their ratio {claim.slowdown:.2f} agrees with the measured {comparison.slowdown.estimate:.2f},"
        " as it may on a slower or faster machine."
    )


def _times(standard_ms: float | None, variant_ms: float | None) -> str:
    named = (("standard", standard_ms), ("variant", variant_ms))
    return ", ".join(f"{name} {_milliseconds(time_ms)}" for name, time_ms in named if time_ms is not None)


def _milliseconds(time_ms: float) -> str:
    decimals = 1 if time_ms >= 10 else 2 if time_ms >= 1 else 4
    return f"{time_ms:.{decimals}f} ms"
