"""Shares of a gain: exact where every subset is measured, and never off where gains just add up."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlag.proof.shapley import Coalition, needed_coalitions, value, weights

WINS = st.floats(-100, 100)


def coalitions(players: Coalition) -> list[Coalition]:
    return [frozenset(c) for size in range(1, len(players) + 1) for c in combinations(sorted(players), size)]


@st.composite
def games(draw: st.DrawFn, sizes: tuple[int, ...] = (1, 2, 3)) -> tuple[Coalition, dict[Coalition, float]]:
    players = frozenset("abcdef"[: draw(st.sampled_from(sizes))])
    return players, {coalition: draw(WINS) for coalition in coalitions(players)}


@st.composite
def additive_games(draw: st.DrawFn) -> tuple[dict[str, float], dict[Coalition, float]]:
    worth = {player: draw(WINS) for player in "abcdef"[: draw(st.integers(1, 6))]}
    return worth, {coalition: sum(worth[p] for p in coalition) for coalition in coalitions(frozenset(worth))}


def by_orders(player: str, players: Coalition, wins: dict[Coalition, float]) -> float:
    """Shapley's own definition: the mean gain over all orders."""
    full = {frozenset(): 0.0, **wins}
    orders = list(permutations(players))
    before = [frozenset(order[: order.index(player)]) for order in orders]
    return sum(full[group | {player}] - full[group] for group in before) / len(orders)


@given(games())
def test_up_to_three_players_get_shapleys_own_value(game):
    players, wins = game
    for player in players:
        assert value(player, players, wins) == pytest.approx(by_orders(player, players, wins), abs=1e-9)


@given(games())
def test_the_shares_add_up_to_the_whole_win(game):
    players, wins = game
    assert sum(value(player, players, wins) for player in players) == pytest.approx(wins[players], abs=1e-9)


@given(games((3,)), games((3,)))
def test_two_games_at_once_give_both_shares(one, other):
    players, wins = one
    both = {coalition: wins[coalition] + other[1][coalition] for coalition in wins}
    for player in players:
        expected = value(player, players, wins) + value(player, players, other[1])
        assert value(player, players, both) == pytest.approx(expected, abs=1e-9)


@given(st.integers(2, 6).flatmap(lambda n: st.lists(WINS, min_size=n, max_size=n)))
def test_equal_players_get_equal_shares(by_size):
    players = frozenset("abcdef"[: len(by_size)])
    wins = {coalition: by_size[len(coalition) - 1] for coalition in coalitions(players)}
    shares = [value(player, players, wins) for player in players]
    assert shares == pytest.approx([shares[0]] * len(shares), abs=1e-9)


@given(games((2,)))
def test_who_adds_nothing_gets_nothing(game):
    pair, wins = game
    players = pair | {"idle"}
    idle = {coalition: wins.get(coalition - {"idle"}, 0.0) for coalition in coalitions(players)}
    assert value("idle", players, idle) == pytest.approx(0.0, abs=1e-9)
    for player in pair:
        assert value(player, players, idle) == pytest.approx(value(player, pair, wins), abs=1e-9)


@given(additive_games())
def test_gains_that_add_up_are_split_exactly_however_many(game):
    worth, wins = game
    players = frozenset(worth)
    measured = {coalition: wins[coalition] for coalition in needed_coalitions(players)}
    for player in players:
        assert value(player, players, measured) == pytest.approx(worth[player], abs=1e-9)


@given(st.integers(4, 6), WINS, WINS)
def test_gains_that_change_evenly_with_the_others_are_split_exactly(count, slope, bend):
    """With marginal gains on a line, the unmeasured sizes are no guess, and the shares add up."""
    players = frozenset("abcdef"[:count])
    wins = {group: slope * len(group) + bend * len(group) ** 2 for group in coalitions(players)}
    measured = {group: wins[group] for group in needed_coalitions(players)}
    for player in players:
        assert value(player, players, measured) == pytest.approx(wins[players] / count, abs=1e-6)


def test_two_players_get_the_mean_of_first_in_and_last_out():
    """The article's knot: 44.8 and 43.0 ms alone, 44.9 together (design, section 7)."""
    players = frozenset({"int8", "fp16"})
    wins = {frozenset({"int8"}): 44.8, frozenset({"fp16"}): 43.0, players: 49.5}
    assert value("int8", players, wins) == pytest.approx((44.8 + 49.5 - 43.0) / 2)
    assert value("fp16", players, wins) == pytest.approx((43.0 + 49.5 - 44.8) / 2)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, {1}), (2, {1, 2}), (3, {1, 2, 3}), (4, {1, 2, 3, 4}), (6, {1, 2, 5, 6})]
)
def test_what_is_needed_is_what_is_weighed(count, sizes):
    players = frozenset("abcdef"[:count])
    needed = needed_coalitions(players)
    assert len(needed) == len(set(needed))
    assert {len(coalition) for coalition in needed} == sizes
    weighed = {coalition for player in players for coalition in weights(player, players)}
    assert weighed == set(needed)


@pytest.mark.parametrize("count", range(1, 8))
def test_a_players_gains_are_weighed_to_one(count):
    players = frozenset("abcdefg"[:count])
    for player in players:
        own = sum(weight for coalition, weight in weights(player, players).items() if player in coalition)
        assert own == pytest.approx(1.0)
        others = sum(weight for coalition, weight in weights(player, players).items() if player not in coalition)
        assert -1.0 <= others <= 0.0


@given(st.integers(4, 6), st.randoms(use_true_random=False))
def test_shares_add_up_to_the_whole_for_any_number_of_players(count, random):
    players = frozenset("abcdef"[:count])
    wins = {coalition: random.uniform(-5, 30) for coalition in needed_coalitions(players)}
    total = sum(value(player, players, wins) for player in players)
    assert total == pytest.approx(wins[players])
