"""Where the time is, by kind of operator, and how near each kind comes to the machine's roofline. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from unlag.errors import Missing
from unlag.measure.ceilings import Ceilings
from unlag.observe.evidence import Side
from unlag.observe.work import roofline_share
from unlag.runtimes.contract import Operator

SHORTEST_MS = 0.002
"""Profilers count whole microseconds: a time below two of them is mostly rounding, and a ratio to it means nothing."""


def operators_by_kind(side: Side) -> Mapping[str, list[Operator]]:
    """Profiled operators of each kind; empty without a profile."""
    groups: dict[str, list[Operator]] = {}
    if isinstance(side.profile, Missing):
        return groups
    for operator in side.profile.operators:
        groups.setdefault(operator.kind, []).append(operator)
    return groups


def time_of(operators: list[Operator]) -> float:
    """Milliseconds of one run."""
    return sum(operator.time_ms for operator in operators)


def share_of_roofline(operators: list[Operator], ceilings: Ceilings | Missing) -> float | None:
    """Ideal time over real time; nothing where the ceilings are not known or no time is spent."""
    return None if isinstance(ceilings, Missing) else roofline_share(operators, ceilings)
