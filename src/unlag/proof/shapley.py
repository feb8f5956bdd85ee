"""How a gain that several causes share is split between them. Pure.

With the players of a knot (causes whose worths depend on each other), a cause's cost is its Shapley value: the mean
of what its removal wins, over all orders in which the causes could be removed (L. S. Shapley, "A value for n-person
games", 1953). Two players need only first-in and last-out; three need the pairs too; with more, the sizes between
two and all-but-one are interpolated, since measuring every subset would cost 2^n contenders.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

Coalition = frozenset[str]

EXACT_PLAYERS = 3
"""Up to so many players every subset is measured."""


def needed_coalitions(players: Coalition) -> list[Coalition]:
    """The sets of removed causes that have to be measured for the players' Shapley values."""
    sizes = {size for size in (1, 2, len(players) - 1, len(players)) if 0 < size <= len(players)}
    return [frozenset(group) for size in sorted(sizes) for group in combinations(sorted(players), size)]


def weights(player: str, players: Coalition) -> dict[Coalition, float]:
    """Coefficients whose sum over coalitions, times each one's win, is the player's Shapley value.

    Exact up to three players. Above, marginal gains at unmeasured sizes are taken from the line between their
    neighbors, and what the players' shares then lack to the win of all together is split evenly between them.
    """
    own = _raw_weights(player, players)
    if len(players) <= EXACT_PLAYERS:
        return own
    lacking = {players: 1.0}
    for each in players:
        for coalition, weight in _raw_weights(each, players).items():
            lacking[coalition] = lacking.get(coalition, 0.0) - weight
    for coalition, weight in lacking.items():
        own[coalition] = own.get(coalition, 0.0) + weight / len(players)
    return own


def _raw_weights(player: str, players: Coalition) -> dict[Coalition, float]:
    others = players - {player}
    count = len(players)
    result: dict[Coalition, float] = {}
    for size, share in _size_shares(count).items():
        groups = [frozenset(c) for c in combinations(sorted(others), size)]
        for group in groups:
            part = share / len(groups)
            result[group | {player}] = result.get(group | {player}, 0.0) + part
            if group:
                result[group] = result.get(group, 0.0) - part
    return result


def _size_shares(players: int) -> dict[int, float]:
    """How much the marginal gain next to ``size`` others counts: 1/n each, unmeasured sizes spread over 1 and n−1."""
    shares: dict[int, float] = dict.fromkeys((size for size in (0, 1, players - 1) if size < players), 1.0 / players)
    for size in range(2, players - 1):
        far = (size - 1) / (players - 2)
        shares[1] += (1 - far) / players
        shares[players - 1] += far / players
    return shares


def value(player: str, players: Coalition, wins: Mapping[Coalition, float]) -> float:
    """The player's share of what removing all players wins."""
    return sum(weight * wins[coalition] for coalition, weight in weights(player, players).items())
