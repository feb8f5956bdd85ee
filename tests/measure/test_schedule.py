"""Orders of rounds, and when every contender is started anew."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlag.measure.schedule import Protocol, orders


@given(st.integers(1, 9), st.integers(0, 1000))
def test_every_contender_has_one_turn_a_round(contenders, seed):
    for order in islice(orders(contenders, seed), 20):
        assert sorted(order) == list(range(contenders))


@given(st.integers(0, 1000))
def test_a_seed_repeats_its_orders(seed):
    assert list(islice(orders(4, seed), 30)) == list(islice(orders(4, seed), 30))


def test_seeds_differ():
    assert len({tuple(islice(orders(4, seed), 10)) for seed in range(20)}) == 20


def test_rounds_are_not_all_alike_and_everybody_is_first_as_often():
    rounds = list(islice(orders(3, 0), 600))
    assert set(rounds) == {(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)}
    firsts = Counter(order[0] for order in rounds)
    assert all(150 < count < 250 for count in firsts.values())


@pytest.mark.parametrize(
    ("rounds", "launches", "each"), [(5, 2, 3), (4, 2, 2), (1, 2, 1), (5, 1, 5), (7, 3, 3), (2, 5, 1)]
)
def test_a_launch_serves_its_share_of_the_rounds(rounds, launches, each):
    assert Protocol(rounds=rounds, launches=launches).rounds_per_launch == each


def test_the_protocol_is_what_is_promised_and_frozen():
    protocol = Protocol()
    assert (protocol.rounds, protocol.launches, protocol.min_runs, protocol.min_turn_ms) == (5, 2, 5, 200.0)
    with pytest.raises(AttributeError):
        protocol.rounds = 1  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(protocol), type=Protocol) == protocol
