"""From measured wins to causes that add up; all by hand, nothing is timed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proof.remedies import suspect
from report import records
from unlag.causes.contract import Finding
from unlag.measure.accuracy import Scored
from unlag.measure.comparison import Comparison
from unlag.measure.statistics import Interval
from unlag.model.workload import Evaluation
from unlag.proof.accuracy_knots import accuracy_knot
from unlag.proof.copies import Suspect
from unlag.proof.explanation import CauseReport
from unlag.proof.outputs import Rejection
from unlag.proof.prove import NO_PROOFS, Proofs, _knot, last_out, noise_ms
from unlag.proof.reconcile import cost_weights, knots_of, reconcile, reconcile_accuracy, report_causes
from unlag.proof.shapley import needed_coalitions
from unlag.proof.times import NOTHING, STANDARD, Removed, Times

FOUND = Finding("found", "3 of 3 places", ("here",))
COMPARISON = records.comparison()
"""75.4 ms against 23.4 ms; its noise floor is 1 % of the standard's time, 0.234 ms."""


VARIANT_MS = 75.4


def rounds(center: float, spread: float = 0.01, count: int = 5) -> np.ndarray:
    """Round by round, with exactly this mean."""
    return center + spread * (np.arange(count) - (count - 1) / 2)


def times_of(wins_ms: dict[str, float], gap_ms: float) -> Times:
    """``{"a": 3, "ab": 4}``: what removing each set of causes wins, from one batch."""
    everything = frozenset(max(wins_ms, key=len))
    batch: dict[Removed, np.ndarray] = {NOTHING: rounds(VARIANT_MS, 0.0), STANDARD: rounds(VARIANT_MS - gap_ms)}
    batch |= {frozenset(name): rounds(VARIANT_MS - won) for name, won in wins_ms.items()}
    batch[everything] = rounds(VARIANT_MS - wins_ms["".join(sorted(everything))], 0.0)
    times = Times(VARIANT_MS, everything)
    times.add_batch(batch)
    return times


def proofs_of(wins_ms: dict[str, float], gap_ms: float, knot: str = "", **options: object) -> Proofs:
    suspects = tuple(suspect(name, **options) for name in sorted(max(wins_ms, key=len)))
    return Proofs(suspects, (), times_of(wins_ms, gap_ms), {}, None, frozenset(knot))


def reports_of(proofs: Proofs, comparison: Comparison = COMPARISON) -> dict[str, CauseReport]:
    found = [(s.cause, FOUND) for s in proofs.suspects]
    return {report.id: report for report in report_causes(found, proofs, comparison)}


@st.composite
def measured_proofs(draw: st.DrawFn) -> Proofs:
    """Any times, in batches with different numbers of rounds, with or without a knot."""
    everything = frozenset("abcd"[: draw(st.integers(1, 4))])
    knot = everything if draw(st.booleans()) and len(everything) > 1 else frozenset()
    sets = set(needed_coalitions(everything)) | {everything - {name} for name in everything}
    times = Times(draw(st.floats(1, 100)), everything)
    for copies in draw(st.permutations(sorted(sets - {everything, NOTHING}, key=sorted)).map(halves)):
        count = draw(st.integers(2, 8))
        arrays = st.lists(st.floats(1, 100), min_size=count, max_size=count).map(np.array)
        times.add_batch({key: draw(arrays) for key in (NOTHING, everything, STANDARD, *copies)})
    return Proofs(tuple(suspect(name) for name in sorted(everything)), (), times, {}, None, knot)


def halves(sets: list[Removed]) -> list[list[Removed]]:
    return [sets[: len(sets) // 2], sets[len(sets) // 2 :]]


@given(measured_proofs())
def test_explained_interaction_and_unexplained_add_up_to_the_gap(proofs):
    parts = reconcile(proofs, list(reports_of(proofs).values()))
    assert parts is not None
    total = parts.explained_ms.estimate + parts.interaction_ms.estimate + parts.unexplained_ms.estimate
    assert total == pytest.approx(parts.gap_ms.estimate, abs=1e-9)


@given(measured_proofs())
def test_what_is_explained_is_the_sum_of_the_proven_costs(proofs):
    reports = reports_of(proofs)
    parts = reconcile(proofs, list(reports.values()))
    costs = [r.cost_ms.estimate for r in reports.values() if r.status == "proven" and r.cost_ms is not None]
    assert parts is not None
    assert parts.explained_ms.estimate == pytest.approx(sum(costs), abs=1e-9)


def test_the_articles_flash_adds_up():
    """The numbers of the design, section 7: a is INT8 weights, b is FP16."""
    proofs = proofs_of({"a": 44.8, "b": 43.0, "ab": 49.5}, 52.0, knot="ab")
    reports = reports_of(proofs)
    assert reports["a"].cost_ms.estimate == pytest.approx(25.65)
    assert (reports["a"].first_in_ms.estimate, reports["a"].last_out_ms.estimate) == pytest.approx((44.8, 6.5))
    assert (reports["b"].first_in_ms.estimate, reports["b"].last_out_ms.estimate) == pytest.approx((43.0, 4.7))
    assert reports["a"].share_of_gap == pytest.approx(25.65 / 52.0)
    parts = reconcile(proofs, list(reports.values()))
    assert parts.gap_ms.estimate == pytest.approx(52.0)
    assert parts.explained_ms.estimate == pytest.approx(49.5)
    assert parts.interaction_ms.estimate == pytest.approx(0.0, abs=1e-9)
    assert parts.unexplained_ms.estimate == pytest.approx(2.5)


def test_a_repair_that_ends_ahead_of_the_standard_leaves_less_than_nothing_unexplained():
    proofs = proofs_of({"a": 60.0}, 52.0)
    parts = reconcile(proofs, list(reports_of(proofs).values()))
    assert parts.unexplained_ms.estimate == pytest.approx(-8.0)
    assert parts.unexplained_ms.high < 0


def test_a_cost_above_the_noise_that_is_not_sure_is_said_with_its_interval():
    everything = frozenset("b")
    times = Times(VARIANT_MS, everything)
    won = rounds(VARIANT_MS - 0.5, 1.0)
    times.add_batch({NOTHING: rounds(VARIANT_MS, 0.0), STANDARD: rounds(VARIANT_MS - 12.0), everything: won})
    report = reports_of(replace(proofs_of({"b": 0.5}, 12.0), times=times))["b"]
    assert report.status == "ruled_out"
    assert report.cost_ms.low < 0
    assert report.cost_ms.estimate > noise_ms(COMPARISON)
    assert f"0.50 ms ({report.cost_ms.low:.2f} to {report.cost_ms.high:.2f}) may be nothing" in report.reason


def test_causes_below_the_noise_are_not_explained_but_stay_in_the_sum():
    proofs = proofs_of({"a": 10.0, "b": 0.1, "ab": 10.1}, 12.0)
    reports = reports_of(proofs)
    assert (reports["a"].status, reports["b"].status) == ("proven", "ruled_out")
    assert "0.10 ms is not above the noise of 0.23 ms" in reports["b"].reason
    assert reports["b"].reason.startswith("3 of 3 places, but ")
    parts = reconcile(proofs, list(reports.values()))
    assert parts.explained_ms.estimate == pytest.approx(10.0)
    assert parts.interaction_ms.estimate == pytest.approx(0.1)


def test_a_cost_whose_interval_holds_nothing_is_not_proven():
    proofs = proofs_of({"a": 2.0}, 12.0)
    times = Times(VARIANT_MS, frozenset("a"))
    unsteady = rounds(VARIANT_MS - 2.0, 0.0) + np.array([-6.0, 6.0, -5.0, 5.0, 0.0])
    times.add_batch({NOTHING: rounds(VARIANT_MS, 0.0), frozenset("a"): unsteady, STANDARD: rounds(VARIANT_MS - 12.0)})
    proofs = replace(proofs, times=times)
    assert reports_of(proofs)["a"].status == "ruled_out"


def test_a_remedy_that_makes_it_slower_is_no_proof():
    assert reports_of(proofs_of({"a": -3.0}, 12.0))["a"].status == "ruled_out"


def test_three_that_knot_share_by_shapley():
    wins = {"a": 6.0, "b": 6.0, "c": 0.0, "ab": 6.0, "ac": 9.0, "bc": 6.0, "abc": 9.0}
    proofs = proofs_of(wins, 10.0, knot="abc")
    costs = [reports_of(proofs)[name].cost_ms.estimate for name in "abc"]
    assert costs == pytest.approx([4.5, 3.0, 1.5])
    assert sum(costs) == pytest.approx(9.0)


def test_who_is_outside_a_knot_gets_the_mean_of_its_two_ends():
    wins = {"a": 6.0, "b": 6.0, "c": 1.0, "ab": 6.0, "ac": 7.0, "bc": 7.0, "abc": 7.0}
    assert dict(cost_weights("c", proofs_of(wins, 10.0, knot="ab"))) == {
        frozenset("c"): 0.5, frozenset("abc"): 0.5, frozenset("ab"): -0.5,
    }  # fmt: skip


def test_a_single_cause_costs_what_it_wins():
    assert dict(cost_weights("a", proofs_of({"a": 5.0}, 9.0))) == {frozenset("a"): 1.0}
    assert last_out("a", frozenset("a")) == {frozenset("a"): 1.0}


def test_the_dearest_proven_cause_comes_first():
    proofs = proofs_of({"a": 1.0, "b": 5.0, "c": 0.0, "ab": 6.0, "ac": 1.0, "bc": 5.0, "abc": 6.0}, 9.0)
    others = [
        (suspect("failed").cause, Finding("failed", "the detector raised KeyError: 'x'")),
        (suspect("absent").cause, Finding("not_checked", "no CUDA device")),
        (suspect("healthy").cause, Finding("ruled_out", "0 of 3")),
        (suspect("unmeasured").cause, FOUND),
    ]
    reports = report_causes([*others, *((s.cause, FOUND) for s in proofs.suspects)], proofs, COMPARISON)
    ruled_out = [report.id for report in reports if report.status == "ruled_out"]
    assert sorted(ruled_out) == ["c", "healthy"]
    assert [report.id for report in reports] == ["b", "a", "unmeasured", "failed", "absent", *ruled_out]
    by_id = {report.id: report for report in reports}
    assert by_id["unmeasured"].status == "suspected"
    assert by_id["unmeasured"].reason == "3 of 3 places; not proven: it was not measured"
    assert by_id["absent"].reason == "no CUDA device"
    assert by_id["b"].remedy.title == "mend b"


def test_a_rejected_remedy_leaves_its_cause_suspected_with_the_reason():
    rejected = suspect("c")
    why = Rejection("c", "its remedy (mend c) found nothing to change")
    proofs = replace(proofs_of({"a": 5.0}, 9.0), rejections=(why,))
    reports = report_causes([(rejected.cause, FOUND)], proofs, COMPARISON)
    assert reports[0].status == "suspected"
    assert reports[0].reason == "3 of 3 places; not proven: its remedy (mend c) found nothing to change"
    assert reports[0].cost_ms is None


def test_without_proofs_there_is_nothing_to_reconcile():
    nothing = Proofs((), (), None, {}, None, frozenset())
    assert reconcile(nothing, ()) is None
    assert reconcile_accuracy(nothing, ()) is None
    assert not knots_of(nothing, ())


def test_why_a_cause_is_not_proven_is_said_where_it_was_tried():
    advice = replace(suspect("c").cause, remedies=(replace(suspect("c").remedy, safety="ADVICE"),))
    unlabeled = msgspec.structs.replace(COMPARISON, accuracy_change=None)
    lossy = replace(suspect("d").cause, affects=frozenset({"accuracy"}))
    said = {
        report.id: report.reason
        for report in report_causes([(advice, FOUND), (lossy, FOUND)], proofs_of({"a": 5.0}, 9.0), unlabeled)
    }
    assert said["c"].endswith("not proven: unlag can't take it away, so it could not be measured")
    assert said["d"].endswith("not proven: it costs accuracy only, and the workload has no labels")
    quick = report_causes([(advice, FOUND), (lossy, FOUND)], NO_PROOFS, unlabeled, tried=False)
    assert {report.reason for report in quick} == {"3 of 3 places"}
    assert {report.id: report.affects for report in quick}["d"] == ("accuracy",)


def test_a_cause_that_nothing_could_measure_stays_suspected():
    """One of accuracy, on a workload without labels."""
    proofs = proofs_of({"a": 5.0}, 9.0, affects=frozenset({"accuracy"}))
    report = reports_of(proofs)["a"]
    assert report.status == "suspected"
    assert report.reason == "3 of 3 places; not proven: it was not measured"


KNOTTED = {"a": 44.8, "b": 43.0, "ab": 45.0}
BOTH_HAVE_TO_GO = {"a": 1.0, "b": 2.0, "ab": 20.0}


def test_a_knot_of_two_that_overlap_says_that_either_is_enough():
    proofs = proofs_of(KNOTTED, 52.0, knot="ab")
    (knot,) = knots_of(proofs, list(reports_of(proofs).values()))
    assert knot.causes == ("a", "b")
    assert knot.sentence == "either remedy alone wins most of it (100% of the 45.0 ms that both win)"


def test_a_knot_of_two_that_need_each_other_says_that_both_have_to_go():
    proofs = proofs_of(BOTH_HAVE_TO_GO, 52.0, knot="ab")
    (knot,) = knots_of(proofs, list(reports_of(proofs).values()))
    assert knot.sentence == "both have to go: together they win 20.0 ms, alone 1.0 and 2.0 ms"


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_knot_says_why_where_one_of_its_causes_knows(who):
    plain = proofs_of(KNOTTED, 52.0, knot="ab")
    why = {who: suspect(who, knots={"b" if who == "a" else "a": "weights are made, then converted"})}
    proofs = replace(plain, suspects=tuple(why.get(s.id, s) for s in plain.suspects))
    (knot,) = knots_of(proofs, list(reports_of(proofs).values()))
    assert knot.sentence.startswith("weights are made, then converted; either remedy")


def test_causes_that_add_up_make_no_knot():
    proofs = proofs_of({"a": 5.0, "b": 4.0, "ab": 9.0}, 12.0, knot="ab")
    assert not knots_of(proofs, list(reports_of(proofs).values()))


def test_only_proven_causes_are_in_a_knots_sentence():
    proofs = proofs_of({"a": 5.0, "b": -5.0, "ab": 5.0}, 12.0, knot="ab")
    reports = reports_of(proofs)
    assert reports["b"].status == "ruled_out"
    assert not knots_of(proofs, list(reports.values()))


@pytest.mark.parametrize(
    ("wins", "knot"),
    [
        (KNOTTED, "ab"),
        (BOTH_HAVE_TO_GO, "ab"),
        ({"a": 5.0, "b": 4.0, "ab": 9.0}, ""),
        ({"a": 5.0, "b": 4.0, "ab": 8.8}, ""),  # within the noise
        ({"a": 30.0, "b": 25.0, "ab": 54.0}, ""),  # 1 ms, but 2 % of either
        ({"a": 6.0, "b": 6.0, "c": 1.0, "ab": 6.0, "ac": 7.0, "bc": 7.0, "abc": 7.0}, "ab"),
        ({"a": 5.0}, ""),
    ],
)
def test_a_knot_is_who_wins_clearly_more_or_less_alone_than_last(wins, knot):
    proofs = proofs_of(wins, 52.0)
    assert _knot(proofs.times, proofs.suspects, COMPARISON) == frozenset(knot)


def test_ends_that_differ_by_noise_alone_make_no_knot():
    noisy = np.array([-9.0, 9.0, -8.0, 8.0, 0.0])
    times = Times(VARIANT_MS, frozenset("ab"))
    batch = {NOTHING: 0.0, frozenset("a"): 8.0, frozenset("b"): 8.0, frozenset("ab"): 12.0, STANDARD: 50.0}
    times.add_batch(
        {key: rounds(VARIANT_MS - won, 0.0) + (noisy if len(key) == 1 else 0) for key, won in batch.items()}
    )
    assert not _knot(times, (suspect("a"), suspect("b")), COMPARISON)


def test_noise_is_how_far_the_control_came_out_and_at_least_one_percent():
    assert noise_ms(COMPARISON) == pytest.approx(0.234)
    for estimate in (1.05, 0.95):
        loud = msgspec.structs.replace(COMPARISON, noise=Interval(estimate, 0.9, 1.2))
        assert noise_ms(loud) == pytest.approx(0.05 * 23.4)


def scored(right: float, seed: int = 0, count: int = 400) -> Scored:
    """Predictions of which this share is right, on always the same items."""
    labels = np.arange(count) % 7 / 1.0
    predictions = np.where(np.arange(count) / count < right, labels, labels + 1)[
        np.random.default_rng(seed).permutation(count)
    ]
    order = np.random.default_rng(seed).permutation(count)
    evaluation = Evaluation(
        "accuracy", (), "none", labels[order], lambda rows, _: rows, lambda p, y: 100 * float(np.mean(p == y))
    )
    return Scored(evaluation, predictions.astype(np.float32), predictions.astype(np.float32))


def accuracy_proofs(points: dict[str, float], standard: float = 90.0) -> Proofs:
    players = sorted(max(points, key=len))
    nothing_won = {"".join(players): 0.0, **dict.fromkeys(players, 0.0)}
    scores = {frozenset(name): scored(value / 100) for name, value in points.items()}
    proofs = proofs_of(nothing_won, 0.1, affects=frozenset({"accuracy"}))
    return replace(proofs, scores=scores, standard_score=scored(standard / 100), scored=proofs.everything)


def test_points_are_proven_by_what_removing_the_cause_brings_back():
    proofs = accuracy_proofs({"": 80.0, "a": 89.0})
    report = reports_of(proofs)["a"]
    assert report.status == "proven"
    assert report.accuracy_cost.estimate == pytest.approx(9.0)
    assert 0 < report.accuracy_cost.low < 9.0 < report.accuracy_cost.high
    assert report.cost_ms is None
    comparison = COMPARISON
    assert report.share_of_loss == pytest.approx(9.0 / -comparison.accuracy_change.estimate)
    parts = reconcile_accuracy(proofs, [report])
    assert parts.loss.estimate == pytest.approx(10.0)
    assert parts.explained.estimate == pytest.approx(9.0)
    assert parts.interaction.estimate == pytest.approx(0.0)
    assert parts.unexplained.estimate == pytest.approx(1.0)


def test_points_of_two_causes_add_up_with_their_interaction():
    proofs = accuracy_proofs({"": 70.0, "a": 80.0, "b": 75.0, "ab": 88.0})
    reports = reports_of(proofs)
    assert reports["a"].accuracy_cost.estimate == pytest.approx((10.0 + 13.0) / 2)
    assert reports["b"].accuracy_cost.estimate == pytest.approx((5.0 + 8.0) / 2)
    parts = reconcile_accuracy(proofs, list(reports.values()))
    total = parts.explained.estimate + parts.interaction.estimate + parts.unexplained.estimate
    assert total == pytest.approx(parts.loss.estimate) == pytest.approx(20.0)


def test_points_that_do_not_come_back_prove_nothing():
    report = reports_of(accuracy_proofs({"": 80.0, "a": 80.0}))["a"]
    assert report.status == "ruled_out"
    assert "+0.00 points" in report.reason


def test_a_suspect_is_known_by_its_cause():
    assert suspect("a").id == "a"
    assert isinstance(suspect("a"), Suspect)


def test_a_repair_that_fixes_the_shape_has_no_part_in_accuracy():
    proofs = replace(accuracy_proofs({"": 80.0, "a": 89.0}), scored=frozenset({"a"}))
    wide = replace(proofs, suspects=(*proofs.suspects, suspect("shape")))
    assert reconcile_accuracy(wide, []).unexplained.estimate == pytest.approx(1.0)


def test_points_that_either_remedy_brings_back_are_a_knot():
    proofs = accuracy_proofs({"": 70.0, "a": 88.0, "b": 87.0, "ab": 89.0})
    assert accuracy_knot(proofs.scores, "ab", proofs.everything) == {"a", "b"}
    (knot,) = knots_of(replace(proofs, points_knot=frozenset("ab")), list(reports_of(proofs).values()))
    assert knot.causes == ("a", "b")
    assert "either remedy alone brings back most of the 19.0 points" in knot.sentence


def test_points_that_only_both_bring_back_are_a_knot():
    proofs = accuracy_proofs({"": 70.0, "a": 72.0, "b": 72.0, "ab": 89.0})
    (knot,) = knots_of(replace(proofs, points_knot=frozenset("ab")), list(reports_of(proofs).values()))
    assert "both have to go: together they bring back 19.0 points, alone 2.0 and 2.0" in knot.sentence


def test_points_that_add_up_are_no_knot():
    proofs = accuracy_proofs({"": 70.0, "a": 80.0, "b": 75.0, "ab": 85.0})
    assert accuracy_knot(proofs.scores, "ab", proofs.everything) == frozenset()
    assert knots_of(proofs, list(reports_of(proofs).values())) == ()
