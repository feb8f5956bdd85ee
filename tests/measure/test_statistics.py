"""Intervals and verdicts as properties: what must hold for any times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlag.measure import statistics
from unlag.measure.statistics import (
    SMALLEST_ACCURACY_EFFECT,
    SMALLEST_EFFECT,
    Interval,
    accuracy_verdict,
    band_of,
    center_interval,
    mean_interval,
    paired_bootstrap,
    ratio_interval,
    speed_verdict,
)

TIMES = st.floats(1e-3, 1e5)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=20).map(lambda pairs: np.array(pairs).T)
NUMBERS = st.floats(-1e6, 1e6)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    estimate = draw(NUMBERS)
    return Interval(estimate, estimate - draw(st.floats(0, 1e6)), estimate + draw(st.floats(0, 1e6)))


@st.composite
def ratios(draw: st.DrawFn, offset: int) -> tuple[Interval, Interval]:
    """A ratio and its inverse, from logarithms on a grid, so that no two of them differ by rounding alone."""
    low, middle, high = sorted(draw(st.lists(st.integers(-80, 80), min_size=3, max_size=3)))
    logs = [(2 * step + offset) / 1000 for step in (middle, low, high)]
    return Interval(*map(math.exp, logs)), Interval(math.exp(-logs[0]), math.exp(-logs[2]), math.exp(-logs[1]))


def close(one: Interval, other: Interval) -> bool:
    ends = ("estimate", "low", "high")
    return all(math.isclose(getattr(one, end), getattr(other, end), rel_tol=1e-9, abs_tol=1e-9) for end in ends)


def inverse(interval: Interval) -> Interval:
    def turned(value: float) -> float:
        return math.inf if value == 0 else 1 / value

    return Interval(turned(interval.estimate), turned(interval.high), turned(interval.low))


@given(PAIRS)
def test_swapping_the_sides_inverts_the_ratio_with_its_ends(pairs):
    there, back = ratio_interval(*pairs), ratio_interval(*pairs[::-1])
    for one, other in ((there.estimate, back.estimate), (there.low, back.high), (there.high, back.low)):
        if 1e-300 < one < 1e300:  # beyond, an end is 0 or infinite
            assert math.isclose(one * other, 1.0, rel_tol=1e-9)


@given(PAIRS, st.floats(1e-6, 1e6))
def test_another_unit_of_time_changes_no_ratio(pairs, factor):
    there, scaled = ratio_interval(*pairs), ratio_interval(*(pairs * factor))
    assert math.isclose(there.estimate, scaled.estimate, rel_tol=1e-9)
    if there.high < 1e100:
        assert math.isclose(there.low, scaled.low, rel_tol=1e-6)
        assert math.isclose(there.high, scaled.high, rel_tol=1e-6)


@given(PAIRS, st.floats(0.1, 10))
def test_a_machine_that_drifts_changes_no_ratio(pairs, drift):
    speed = np.linspace(1.0, drift, pairs.shape[1])
    assert math.isclose(ratio_interval(*pairs).estimate, ratio_interval(*(pairs * speed)).estimate, rel_tol=1e-9)


@given(PAIRS)
def test_the_estimate_lies_in_its_interval(pairs):
    interval = ratio_interval(*pairs)
    assert interval.low <= interval.estimate <= interval.high


@given(TIMES, TIMES, st.integers(2, 10))
def test_times_that_do_not_vary_give_an_exact_ratio(one, other, count):
    interval = ratio_interval([one] * count, [other] * count)
    assert interval.high - interval.low <= 1e-9 * interval.estimate
    assert math.isclose(interval.estimate, one / other, rel_tol=1e-9)


def test_one_round_gives_a_ratio_without_an_interval():
    interval = ratio_interval([2.0], [1.0])
    assert interval == Interval(pytest.approx(2.0), 0.0, math.inf)
    assert speed_verdict(interval, Interval(1.0, 0.99, 1.01)) == "inconclusive"
    assert band_of(interval) == (0.0, math.inf)
    assert speed_verdict(Interval(9.0, 8.9, 9.1), interval) == "inconclusive"


def test_ratios_beyond_floats_overflow_to_infinity():
    wild = ratio_interval([1e300, 1e-300], [1e-300, 1e300])
    assert (wild.low, wild.high) == (0.0, math.inf)


def test_the_mean_has_students_interval():
    assert mean_interval([1, 2, 3, 4, 5]).estimate == 3
    assert mean_interval([1, 2, 3, 4, 5]).high == pytest.approx(3 + 2.776445 * math.sqrt(2.5 / 5))
    assert mean_interval([7.0]) == Interval(7.0, -math.inf, math.inf)
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])


def test_the_interval_covers_the_truth_nineteen_times_of_twenty():
    rng = np.random.default_rng(1)
    times = 10.0 * np.exp(rng.normal(0.0, 0.05, (2, 1500, 5)))
    hits = 0
    for k in range(1500):
        interval = ratio_interval(1.2 * times[0, k], times[1, k])
        hits += interval.low <= 1.2 <= interval.high
    assert 0.93 < hits / 1500 < 0.97


@given(intervals(), intervals())
def test_sums_of_intervals_commute_and_take_back_what_they_added(one, other):
    assert one.plus(other) == other.plus(one)
    total = one.plus(other)
    assert math.isclose(total.estimate, one.estimate + other.estimate)
    assert total.high - total.estimate >= max(one.high - one.estimate, other.high - other.estimate) - 1e-6
    assert close(one.minus(other), one.plus(other.scaled(-1)))
    assert math.isclose(one.minus(other).estimate, -other.minus(one).estimate, abs_tol=1e-6)


@given(intervals(), st.floats(-1e3, 1e3))
def test_scaling_keeps_the_ends_in_order(interval, factor):
    scaled = interval.scaled(factor)
    assert scaled.low <= scaled.high
    assert math.isclose(
        scaled.high - scaled.low, abs(factor) * (interval.high - interval.low), rel_tol=1e-6, abs_tol=1e-3
    )
    assert interval.scaled(-1).scaled(-1) == interval
    assert interval.scaled(1) == interval


def test_half_widths_of_independent_quantities_add_as_squares():
    assert Interval(10, 7, 13).plus(Interval(1, -3, 5)) == Interval(11, 6, 16)
    assert Interval(10, 7, 13).minus(Interval(1, -3, 5)) == Interval(9, 4, 14)


@given(ratios(offset=1), ratios(offset=0))
def test_swapping_the_sides_swaps_slower_and_faster(slowdown, noise):
    swapped = {"slower": "faster", "faster": "slower", "same": "same", "inconclusive": "inconclusive"}
    for control in noise:  # a control's own direction means nothing
        assert speed_verdict(slowdown[1], control) == swapped[speed_verdict(slowdown[0], control)]


@given(PAIRS, PAIRS)
def test_a_model_against_itself_never_lags(pairs, controls):
    same = ratio_interval(pairs[0], pairs[0])
    assert speed_verdict(same, ratio_interval(*controls)) in {"same", "inconclusive"}


@given(PAIRS.filter(lambda pairs: pairs.shape[1] > 1))
def test_what_the_control_does_too_is_no_verdict(pairs):
    """A slowdown that is the noise itself, in either direction."""
    noise = ratio_interval(*pairs)
    for slowdown in (noise, inverse(noise)):
        assert speed_verdict(slowdown, noise) in {"same", "inconclusive"}


@pytest.mark.parametrize(
    ("slowdown", "noise", "verdict"),
    [
        ((1.2, 1.1, 1.3), (1.0, 0.98, 1.02), "slower"),
        ((0.8, 0.7, 0.9), (1.0, 0.98, 1.02), "faster"),
        ((1.0, 0.995, 1.005), (1.0, 0.999, 1.001), "same"),
        ((1.006, 1.004, 1.008), (1.0, 0.9999, 1.0001), "same"),  # clear, but below 1 %
        ((1.2, 1.1, 1.3), (1.0, 0.9, 1.15), "inconclusive"),
        ((1.2, 1.1, 1.3), (1.0, 0.8, 1.01), "inconclusive"),  # noise counts in both directions
        ((1.0, 0.99, 1.01), (1.0, 0.9, 1.1), "inconclusive"),  # too noisy to call it the same
        ((1.0, 0.8, 1.25), (1.0, 0.99, 1.01), "inconclusive"),
        ((1.2, 0.9, 1.6), (1.0, 0.99, 1.01), "inconclusive"),
    ],
)
def test_the_verdict_needs_the_interval_outside_the_noise(slowdown, noise, verdict):
    assert speed_verdict(Interval(*slowdown), Interval(*noise)) == verdict


@given(ratios(offset=0))
def test_the_band_of_noise_is_around_one_and_at_least_one_percent_wide(noise):
    low, high = band_of(noise[0])
    assert low < 1 < high
    assert high >= 1 + SMALLEST_EFFECT
    assert math.isclose(low * high, 1.0, rel_tol=1e-12)
    assert low <= min(noise[0].low, noise[1].low) + 1e-12


def mean_score(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(predictions == labels) * 100)


def answers(right: float, seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count).astype(np.float64)
    return np.where(rng.random(count) < right, labels, labels + 1), labels


@given(st.integers(0, 100))
def test_equal_predictions_differ_by_exactly_nothing(seed):
    predictions, labels = answers(0.7, seed, 30)
    change = paired_bootstrap(mean_score, predictions, predictions.copy(), labels, seed=seed, resamples=50)
    assert change == Interval(0.0, 0.0, 0.0)


def test_the_bootstrap_of_swapped_sides_is_its_mirror():
    good, labels = answers(0.9, 1)
    bad = np.where(np.arange(200) % 5 == 0, labels + 1, good)
    there = paired_bootstrap(mean_score, bad, good, labels, seed=3)
    back = paired_bootstrap(mean_score, good, bad, labels, seed=3)
    assert close(there, back.scaled(-1))
    assert there.low <= there.estimate <= there.high < 0


def test_the_bootstrap_repeats_by_its_seed_only():
    good, labels = answers(0.9, 1)
    bad = answers(0.8, 2)[0]
    first, again, other = (paired_bootstrap(mean_score, bad, good, labels, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first.estimate == other.estimate
    assert (first.low, first.high) != (other.low, other.high)


def test_pairs_are_resampled_together():
    """Both sides wrong in the same places differ by one item only, however uneven the items are."""
    good, labels = answers(0.5, 4)
    bad = good.copy()
    bad[int(np.argmax(good == labels))] += 1
    change = paired_bootstrap(mean_score, bad, good, labels)
    assert change.estimate == pytest.approx(-0.5)
    assert -2.0 <= change.low <= change.high <= 0.0


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-3.0, -1.0, "worse"),
        (1.0, 3.0, "better"),
        (-3.0, 0.5, "same"),
        (-3.0, -SMALLEST_ACCURACY_EFFECT, "same"),
        (-0.04, -0.01, "same"),  # clear, but it rounds to nothing
        (SMALLEST_ACCURACY_EFFECT, 3.0, "same"),
        (0.0, 0.0, "same"),
    ],
)
def test_accuracy_is_worse_or_better_only_with_the_whole_interval(low, high, verdict):
    assert accuracy_verdict(Interval((low + high) / 2, low, high)) == verdict


class TestCenterInterval:
    def test_up_to_five_values_it_is_students(self):
        values = [1.0, 2.0, 4.0, 8.0, 9.0]
        assert center_interval(values) == mean_interval(values)

    @pytest.mark.parametrize(("count", "critical"), [(6, 0), (7, 2), (8, 3), (10, 8), (15, 25), (20, 52), (25, 89)])
    def test_ranks_are_those_of_the_published_tables(self, count, critical):
        """Wilcoxon's critical values for two sides and 5 %, as in any table of the signed-rank test."""
        assert statistics._signed_rank_quantile(count) == critical

    def test_one_slow_round_of_fifteen_hardly_moves_it(self):
        quiet = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01, 0.99, 1.00, 1.01, 0.98, 1.00, 1.02, 0.99]
        clean, disturbed = center_interval([*quiet, 1.0]), center_interval([*quiet, 3.0])
        assert abs(disturbed.estimate - clean.estimate) < 0.01
        assert disturbed.high - disturbed.low < 0.05
        assert mean_interval([*quiet, 3.0]).high > 1.4

    def test_it_holds_the_center_as_often_as_it_says(self):
        rng = np.random.default_rng(5)
        held = [i.low <= 0 <= i.high for i in (center_interval(rng.normal(0, 1, 9)) for _ in range(1000))]
        assert 0.93 <= np.mean(held) <= 0.99
