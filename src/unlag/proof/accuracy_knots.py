"""Causes whose costs in accuracy depend on each other, found by scoring pairs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from unlag.causes.contract import Cause
from unlag.measure.accuracy import Scored
from unlag.measure.statistics import Interval
from unlag.proof.explanation import Knot
from unlag.proof.times import NOTHING, Removed

SMALLEST_POINTS = 0.3
"""A difference below this is not worth a sentence."""
SHARE = 0.15
"""First-in and last-out that differ by more than this share of the larger one make a knot."""

Scores = Mapping[Removed, Scored]


def gain(after: Scored, before: Scored) -> Interval:
    """Points that come back from one copy to another, paired by item."""
    return after.change_from(before, seed=0)


def accuracy_knot(scores: Scores, causes: Iterable[str], everything: Removed) -> frozenset[str]:
    """Causes that bring back clearly more or less points alone than last; empty where all add up."""
    knotted = set()
    for cause in causes:
        alone, rest = frozenset({cause}), everything - {cause}
        if not {NOTHING, alone, rest, everything} <= set(scores):
            continue
        first, last = gain(scores[alone], scores[NOTHING]), gain(scores[everything], scores[rest])
        differs = first.minus(last)
        least = max(SMALLEST_POINTS, SHARE * max(abs(first.estimate), abs(last.estimate)))
        if abs(differs.estimate) > least and not differs.low <= 0 <= differs.high:
            knotted.add(cause)
    return frozenset(knotted) if len(knotted) > 1 else frozenset()


def accuracy_knots(scores: Scores, knot: frozenset[str], causes: Mapping[str, Cause]) -> list[Knot]:
    """A sentence for each pair of the knot that was scored together and does not add up."""
    knots = []
    for one, other in combinations(sorted(knot & set(causes)), 2):
        sets = [frozenset({one}), frozenset({other}), frozenset({one, other})]
        if not {NOTHING, *sets} <= set(scores):
            continue
        first, second, together = (gain(scores[removed], scores[NOTHING]) for removed in sets)
        sentence = _sentence(first.estimate, second.estimate, together.estimate)
        if sentence:
            why = causes[one].knots.get(other) or causes[other].knots.get(one)
            knots.append(Knot((one, other), f"{why}; {sentence}" if why else sentence))
    return knots


def _sentence(first: float, second: float, together: float) -> str:
    overlap = first + second - together
    if abs(overlap) < max(SMALLEST_POINTS, SHARE * abs(together)):
        return ""
    if overlap > 0:
        return f"either remedy alone brings back most of the {together:.1f} points that both do"
    return f"both have to go: together they bring back {together:.1f} points, alone {first:.1f} and {second:.1f}"
