"""Where the time is, by kind of operator, standard beside variant."""

from __future__ import annotations

from unlag.errors import Missing
from unlag.observe.evidence import Evidence, Side


def times_by_kind(side: Side) -> dict[str, float]:
    """Milliseconds of each kind of operator in one run; empty without a profile."""
    times: dict[str, float] = {}
    if isinstance(side.profile, Missing):
        return times
    for operator in side.profile.operators:
        times[operator.kind] = times.get(operator.kind, 0.0) + operator.time_ms
    return times


def compared_by_kind(evidence: Evidence) -> list[tuple[str, float, float]]:
    """Kind, standard's and variant's milliseconds; the largest difference first."""
    standard, variant = times_by_kind(evidence.standard), times_by_kind(evidence.variant)
    kinds = sorted({*standard, *variant})
    rows = [(kind, standard.get(kind, 0.0), variant.get(kind, 0.0)) for kind in kinds]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))
