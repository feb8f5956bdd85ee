"""Proofs -> Reconciliation: what each cause costs, how causes knot, and what stays unexplained. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from unlag.causes.contract import Affects, Cause, Finding
from unlag.measure.comparison import Comparison
from unlag.measure.statistics import SMALLEST_ACCURACY_EFFECT, Interval
from unlag.proof import shapley
from unlag.proof.accuracy_knots import accuracy_knots, gain
from unlag.proof.copies import Suspect
from unlag.proof.explanation import (
    AccuracyReconciliation,
    CauseReport,
    CauseStatus,
    Knot,
    Reconciliation,
    RemedyNote,
)
from unlag.proof.prove import Proofs, last_out, noise_ms
from unlag.proof.times import NOTHING, STANDARD, Removed, Times

ORDER: tuple[CauseStatus, ...] = ("proven", "suspected", "failed", "not_checked", "ruled_out")


def report_causes(
    found: Sequence[tuple[Cause, Finding]], proofs: Proofs, comparison: Comparison, *, tried: bool = True
) -> tuple[CauseReport, ...]:
    """What became of every cause, the dearest proven one first; ``tried`` is whether anything was to be proven."""
    reports = [_report(cause, finding, proofs, comparison, tried=tried) for cause, finding in found]
    return tuple(sorted(reports, key=_rank))


def _rank(report: CauseReport) -> tuple[int, float, float]:
    cost = report.cost_ms.estimate if report.cost_ms else 0.0
    points = report.accuracy_cost.estimate if report.accuracy_cost else 0.0
    return ORDER.index(report.status), -cost, -points


def _report(cause: Cause, finding: Finding, proofs: Proofs, comparison: Comparison, *, tried: bool) -> CauseReport:
    suspect = next((s for s in proofs.suspects if s.id == cause.id), None)
    if finding.status != "found" or suspect is None or proofs.times is None:
        return _unproven(cause, finding, proofs, comparison, tried=tried)
    speed = _speed(suspect, proofs)
    points = _accuracy(suspect, proofs)
    if speed is None and points is None:
        return _unproven(cause, finding, proofs, comparison, tried=tried)
    floor = noise_ms(comparison)
    gap = comparison.gap_ms.estimate
    costs_time = speed is not None and speed[0].low > 0 and speed[0].estimate > floor
    costs_points = points is not None and points.low > 0 and points.estimate > SMALLEST_ACCURACY_EFFECT
    loss = -comparison.accuracy_change.estimate if comparison.accuracy_change else 0.0
    status: CauseStatus = "proven" if costs_time or costs_points else "ruled_out"
    return CauseReport(
        id=cause.id,
        title=cause.title,
        dimension=cause.dimension,
        status=status,
        reason=finding.reason if status == "proven" else _below_noise(finding, speed, points, floor),
        where=finding.where,
        remedy=_note(suspect),
        cost_ms=speed[0] if speed else None,
        first_in_ms=speed[1] if speed else None,
        last_out_ms=speed[2] if speed else None,
        share_of_gap=speed[0].estimate / gap if speed and gap > 0 else None,
        accuracy_cost=points,
        share_of_loss=points.estimate / loss if points and loss > 0 else None,
        affects=_affects(cause),
    )


def _unproven(cause: Cause, finding: Finding, proofs: Proofs, comparison: Comparison, *, tried: bool) -> CauseReport:
    status: CauseStatus = "suspected" if finding.status == "found" else finding.status
    why_not = _why_unproven(cause, proofs, comparison) if tried and status == "suspected" else ""
    return CauseReport(
        id=cause.id,
        title=cause.title,
        dimension=cause.dimension,
        status=status,
        reason=f"{finding.reason}; not proven: {why_not}" if why_not else finding.reason,
        where=finding.where,
        affects=_affects(cause),
    )


def _why_unproven(cause: Cause, proofs: Proofs, comparison: Comparison) -> str:
    rejection = next((r for r in proofs.rejections if r.cause == cause.id), None)
    if rejection is not None:
        return rejection.reason
    if all(remedy.safety == "ADVICE" for remedy in cause.remedies):
        return "unlag can't take it away, so it could not be measured"
    if "speed" not in cause.affects and comparison.accuracy_change is None:
        return "it costs accuracy only, and the workload has no labels"
    return "it was not measured"


def _affects(cause: Cause) -> tuple[Affects, ...]:
    """What it can cost, speed first."""
    return tuple(sorted(cause.affects, reverse=True))


def _below_noise(finding: Finding, speed: tuple[Interval, ...] | None, points: Interval | None, floor_ms: float) -> str:
    measured = []
    if speed is not None:
        measured.append(_no_cost(speed[0], floor_ms))
    if points is not None:
        measured.append(f"{points.estimate:+.2f} points ({points.low:+.2f} to {points.high:+.2f}) show no loss")
    return f"{finding.reason}, but {' and '.join(measured)}"


def _no_cost(cost_ms: Interval, floor_ms: float) -> str:
    words = f"its cost of {round(cost_ms.estimate, 2) + 0.0:.2f} ms"  # no minus before a zero
    if cost_ms.estimate <= floor_ms:
        return f"{words} is not above the noise of {floor_ms:.2f} ms"
    return f"{words} ({cost_ms.low:.2f} to {cost_ms.high:.2f}) may be nothing"


def _note(suspect: Suspect) -> RemedyNote:
    return RemedyNote(suspect.remedy.id, suspect.remedy.title, suspect.remedy.safety)


def cost_weights(cause: str, proofs: Proofs) -> Mapping[Removed, float]:
    """Coefficients of a cause's cost over the measured wins.

    A big knot's members share by Shapley's value inside the knot; everyone else by the mean of first-in and last-out.
    """
    everything = proofs.everything
    if cause in proofs.knot and len(proofs.knot) > 2:
        return shapley.weights(cause, proofs.knot)
    halves = {removed: weight / 2 for removed, weight in last_out(cause, everything).items()}
    alone = frozenset({cause})
    halves[alone] = halves.get(alone, 0.0) + 0.5
    return halves


def _speed(suspect: Suspect, proofs: Proofs) -> tuple[Interval, Interval, Interval] | None:
    """Cost, first-in and last-out in milliseconds."""
    times = proofs.times
    if times is None or "speed" not in suspect.cause.affects:
        return None
    return (
        times.won_ms(cost_weights(suspect.id, proofs)),
        times.won_ms({frozenset({suspect.id}): 1.0}),
        times.won_ms(last_out(suspect.id, proofs.everything)),
    )


def _accuracy(suspect: Suspect, proofs: Proofs) -> Interval | None:
    """Points that taking the cause away brings, the mean of first-in and last-out."""
    if "accuracy" not in suspect.cause.affects:
        return None
    everything, scores = proofs.scored, proofs.scores
    ends = ((frozenset({suspect.id}), NOTHING), (everything, everything - {suspect.id}))
    known = [(after, before) for after, before in ends if {after, before} <= set(scores)]
    gains = [gain(scores[after], scores[before]) for after, before in known]
    if not gains:
        return None
    # The two are measured on the same items, so their bounds are averaged as if they moved together.
    estimate, low, high = (
        sum(values) / len(gains) for values in zip(*((g.estimate, g.low, g.high) for g in gains), strict=True)
    )
    return Interval(estimate, low, high)


def reconcile(proofs: Proofs, reports: Sequence[CauseReport]) -> Reconciliation | None:
    """Split the gap: explained + interaction + unexplained, all from the rounds of the proofs' contests."""
    times = proofs.times
    if times is None:
        return None
    explained: dict[Removed, float] = {}
    for report in reports:
        if report.status == "proven" and report.cost_ms is not None:
            for removed, weight in cost_weights(report.id, proofs).items():
                explained[removed] = explained.get(removed, 0.0) + weight
    interaction = {removed: -weight for removed, weight in explained.items()}
    interaction[proofs.everything] = interaction.get(proofs.everything, 0.0) + 1.0
    return Reconciliation(
        gap_ms=times.combine({NOTHING: 1.0, STANDARD: -1.0}),
        explained_ms=times.won_ms(explained),
        interaction_ms=times.won_ms(interaction),
        unexplained_ms=times.combine({proofs.everything: 1.0, STANDARD: -1.0}),
    )


def unexplained(comparison: Comparison) -> Reconciliation:
    """The gap where nothing was found to explain any of it."""
    gap, nothing = comparison.gap_ms, Interval(0.0, 0.0, 0.0)
    return Reconciliation(gap_ms=gap, explained_ms=nothing, interaction_ms=nothing, unexplained_ms=gap)


def reconcile_accuracy(proofs: Proofs, reports: Sequence[CauseReport]) -> AccuracyReconciliation | None:
    """Split the loss: explained + interaction + unexplained, in points."""
    standard = proofs.standard_score
    variant, repaired = proofs.scores.get(NOTHING), proofs.scores.get(proofs.scored)
    if standard is None or variant is None or repaired is None:
        return None
    costs = [r.accuracy_cost for r in reports if r.status == "proven" and r.accuracy_cost is not None]
    explained = Interval(0.0, 0.0, 0.0)
    for cost in costs:
        explained = explained.plus(cost)
    regained = gain(repaired, variant)
    interaction = _difference(regained, explained) if len(costs) == 1 else regained.minus(explained)
    return AccuracyReconciliation(
        loss=gain(standard, variant),
        explained=explained,
        interaction=interaction,
        unexplained=gain(standard, repaired),
    )


def _difference(regained: Interval, explained: Interval) -> Interval:
    """With one cause both are the same measurement, so their noise cancels instead of adding up."""
    ends = sorted((regained.low - explained.low, regained.high - explained.high))
    return Interval(regained.estimate - explained.estimate, ends[0], ends[1])


def knots_of(proofs: Proofs, reports: Sequence[CauseReport]) -> tuple[Knot, ...]:
    """Pairs of proven causes whose worths, in time or in points, depend on each other, each in a sentence."""
    causes = {s.id: s.cause for s in proofs.suspects}
    proven = {r.id for r in reports if r.status == "proven"}
    lossy = {cause: causes[cause] for cause in proven & set(causes)}
    return (*_time_knots(proofs, reports, causes), *accuracy_knots(proofs.scores, proofs.points_knot, lossy))


def _time_knots(proofs: Proofs, reports: Sequence[CauseReport], causes: Mapping[str, Cause]) -> list[Knot]:
    if proofs.times is None or not proofs.knot:
        return []
    proven = {r.id for r in reports if r.status == "proven" and r.cost_ms is not None}
    knots = []
    for one, other in combinations(sorted(proofs.knot & proven), 2):
        sentence = _sentence(causes[one], causes[other], proofs.times)
        if sentence:
            knots.append(Knot((one, other), sentence))
    return knots


def _sentence(one: Cause, other: Cause, times: Times) -> str | None:
    both = frozenset({one.id, other.id})
    if both not in times:
        return None
    first = times.won_ms({frozenset({one.id}): 1.0}).estimate
    second = times.won_ms({frozenset({other.id}): 1.0}).estimate
    together = times.won_ms({both: 1.0})
    overlap = times.won_ms({frozenset({one.id}): 1.0, frozenset({other.id}): 1.0, both: -1.0})
    if overlap.low <= 0 <= overlap.high or abs(overlap.estimate) < 0.1 * abs(together.estimate):
        return None
    why = one.knots.get(other.id) or other.knots.get(one.id)
    reason = f"{why}; " if why else ""
    if overlap.estimate > 0:
        share = max(first, second) / together.estimate
        of_both = f"{share:.0%} of the {together.estimate:.1f} ms that both win"
        return f"{reason}either remedy alone wins most of it ({of_both})"
    alone = f"alone {first:.1f} and {second:.1f} ms"
    return f"{reason}both have to go: together they win {together.estimate:.1f} ms, {alone}"
