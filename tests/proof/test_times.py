"""Times that were measured in batches apart, tied to anchors so that they add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlag.proof.times import NOTHING, STANDARD, Removed, Times, winsorized

ALL = frozenset("ab")
A, B = frozenset("a"), frozenset("b")


def batch(speed: float = 1.0, count: int = 5, **times_ms: float) -> dict[Removed, np.ndarray]:
    """A variant of 100 ms, repaired to 40, a standard of 30, and copies, on a machine of this speed."""
    wobble = 1 + 0.001 * (np.arange(count) - (count - 1) / 2)
    known = {NOTHING: 100.0, ALL: 40.0, STANDARD: 30.0, **{frozenset(name): ms for name, ms in times_ms.items()}}
    return {key: ms * wobble / speed for key, ms in known.items()}


def measured(*batches: dict[Removed, np.ndarray]) -> Times:
    times = Times(100.0, ALL)
    for one in batches:
        times.add_batch(one)
    return times


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0))
def test_batches_add_up_though_the_machine_changed_its_speed(first, second):
    times = measured(batch(first, a=90.0), batch(second, b=50.0))
    assert times.won_ms({A: 1.0}).estimate == pytest.approx(10.0)
    assert times.won_ms({B: 1.0}).estimate == pytest.approx(50.0)
    assert times.won_ms({ALL: 1.0, B: -1.0}).estimate == pytest.approx(10.0)
    assert times.combine({NOTHING: 1.0, STANDARD: -1.0}).estimate == pytest.approx(70.0)


def test_a_drift_of_the_slow_kind_of_model_does_not_touch_what_is_near_the_repaired_one():
    """In the second batch all that is like the variant takes 10 % longer, what is like the repaired model doesn't."""
    drifted = batch(b=42.0)
    drifted[NOTHING] = drifted[NOTHING] * 1.1
    times = measured(batch(a=90.0), batch(), drifted)
    assert times.won_ms({ALL: 1.0, B: -1.0}).estimate == pytest.approx(2.0, abs=0.2)


def test_what_cancels_has_neither_estimate_nor_width():
    times = measured(batch(a=90.0))
    nothing = times.combine({A: 1.0, NOTHING: 2.0, ALL: -1.0, STANDARD: 0.0})
    assert nothing.estimate == pytest.approx(90 + 200 - 40)
    assert times.combine({A: 0.0}) == times.combine({})
    assert times.combine({}).high == 0


def test_equal_copies_share_one_measurement():
    times = measured(batch(a=90.0))
    times.same_as(frozenset("aidle"), A)
    assert frozenset("aidle") in times
    assert times.won_ms({frozenset("aidle"): 1.0}) == times.won_ms({A: 1.0})
    assert times.won_ms({frozenset("aidle"): 1.0, A: -1.0}).high == 0


def test_a_copy_like_the_variant_wins_nothing():
    times = measured(batch())
    times.same_as(B, NOTHING)
    assert times.won_ms({B: 1.0}) == times.combine({})


def test_what_is_known():
    times = Times(100.0, ALL)
    assert NOTHING in times
    assert ALL not in times
    assert A not in times
    times.add_batch(batch(a=90.0))
    assert ALL in times
    assert A in times
    assert B not in times


def test_more_rounds_narrow_the_interval():
    few, many = measured(batch(count=3, a=90.0)), measured(*[batch(count=10, a=90.0)] * 3)
    noisy = batch(count=3, a=90.0)
    noisy[A] = noisy[A] * np.array([1.0, 1.02, 0.98])
    wide = measured(noisy).won_ms({A: 1.0})
    assert wide.high - wide.low > few.won_ms({A: 1.0}).high - few.won_ms({A: 1.0}).low
    assert many.won_ms({A: 1.0}).estimate == pytest.approx(10.0)


def test_one_round_has_no_interval():
    one = measured({key: array[:1] for key, array in batch(a=90.0).items()}).won_ms({A: 1.0})
    assert one.estimate == pytest.approx(10.0)
    assert (one.low, one.high) == (-math.inf, math.inf)


@given(st.dictionaries(st.sampled_from([A, B, ALL, STANDARD, NOTHING]), st.floats(-3, 3)))
def test_combinations_are_linear_and_hold_their_estimate(weights):
    times = measured(batch(a=90.0, b=55.0))
    whole = times.combine(weights)
    parts = sum(times.combine({key: weight}).estimate for key, weight in weights.items())
    assert whole.estimate == pytest.approx(parts, abs=1e-9)
    assert whole.low <= whole.estimate <= whole.high
    mirrored = times.combine({key: -weight for key, weight in weights.items()})
    assert mirrored.low == pytest.approx(-whole.high, abs=1e-9)


def test_the_interval_covers_the_truth():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        noisy = {key: array * np.exp(rng.normal(0, 0.01, array.size)) for key, array in batch(a=90.0).items()}
        win = measured(noisy).won_ms({A: 1.0})
        hits += win.low <= 10.0 <= win.high
    assert hits / 400 > 0.9


def test_one_stray_round_does_not_hide_a_cost():
    rounds = np.array([1.0, 1.01, 0.99, 1.005, 0.995])
    copy, stray = 0.9 * rounds[::-1], np.array([1.0, 1.0, 2.5, 1.0, 1.0])
    times = Times(10.0, frozenset({"a", "b"}))
    times.add_batch({NOTHING: 10 * rounds, frozenset({"a", "b"}): 5 * rounds, frozenset({"a"}): 10 * copy * stray})
    won = times.won_ms({frozenset({"a"}): 1.0})
    assert 0 < won.low < won.estimate < 1.2


def test_even_noise_is_left_as_it_is():
    ratios = np.array([0.98, 1.0, 1.02, 0.99, 1.01])
    assert winsorized(ratios) == pytest.approx(ratios)
    assert winsorized(np.array([2.0])) == pytest.approx([2.0])
