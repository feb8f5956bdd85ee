"""The user's own times: each wrong way of measuring is recognized, and nothing is made up where none fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import numpy as np
import onnxruntime as ort
import pytest

from measure.scripted import cores, fake, hurry, linear
from planting import tiny_bert, tiny_feed
from report import records
from unlag.errors import ContenderError, UsageError
from unlag.measure.bench import first_shape, open_bench
from unlag.measure.compare import Compared, compare_at
from unlag.measure.one_process import Conditions, Timed, Together, measure_factors, measure_together
from unlag.measure.progress import Progress, silent
from unlag.measure.schedule import Protocol
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Feed, Shape
from unlag.observe.claimed_times import mean_from_cold, mean_with_load, off_by, reproduces
from unlag.observe.evidence import Claim
from unlag.proof import claim_measured
from unlag.proof import claims as claims_module
from unlag.proof.claim_report import ClaimReport
from unlag.proof.claims import check_claim
from unlag.runtimes.fake import Fault

COMPARISON = records.comparison()
S, V = COMPARISON.standard.latency_ms.median, COMPARISON.variant.latency_ms.median
LOAD, FIRST = COMPARISON.standard.load_ms, COMPARISON.standard.first_run_ms
SHAPE = Shape(1, 128)
ALONE = Together((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0))

Factor = Callable[[str, Variant, tuple[int, int]], float]
"""How many times as long a side takes, by its name, with these options, at this batch and sequence."""


@dataclass
class StubBench:
    """A bench whose other ways of measuring are scripted."""

    case: Case
    shape: Shape = SHAPE
    progress: Progress = silent
    threads: int = 2
    cores: tuple[int, ...] = (0, 1)

    @property
    def protocol(self) -> Protocol:
        return Protocol()

    @property
    def workload(self) -> SimpleNamespace:
        feed = {"x": np.zeros((self.shape.batch, self.shape.sequence), np.float32)}
        return SimpleNamespace(feed=feed, shape=str(self.shape))

    def within(self, begin: float, end: float) -> Self:
        assert 0 <= begin <= end <= 1
        return self


class Lab:
    """Claims checked on a stub bench; it keeps what was run."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case = case
        self.factor: Factor = lambda *_: 1.0
        self.together = ALONE
        self.comparison = COMPARISON
        self.run: list[tuple[str, dict[str, str], tuple[int, ...]]] = []
        monkeypatch.setattr(claim_measured, "measure_factors", self._factors)
        monkeypatch.setattr(claim_measured, "measure_together", lambda *_: self.together)
        monkeypatch.setattr(claim_measured, "open_bench", StubBench)

    def _factors(self, pairs: list[tuple[Timed, Timed]], _conditions: Conditions) -> tuple[float, ...]:
        factors = []
        for usual, other in pairs:
            name = "standard" if usual.variant == self.case.standard else "variant"
            shape = other.feed["x"].shape
            self.run.append((name, other.variant.options, shape))
            factors.append(self.factor(name, other.variant, shape))
        return tuple(factors)

    def check(self, standard_ms: float | None, variant_ms: float | None) -> ClaimReport:
        bench: Any = StubBench(self.case, first_shape(self.case))
        return check_claim(bench, Compared(self.comparison, {}), Claim(standard_ms, variant_ms))


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Lab:
    case = Case(standard=linear(tmp_path / "standard.onnx"), variant=linear(tmp_path / "variant.onnx"), shapes=(SHAPE,))
    return Lab(case, monkeypatch)


def best_of(report: ClaimReport) -> tuple[str, str]:
    assert not report.agrees
    assert report.best, [(trial.id, trial.off_by) for trial in report.trials[:3]]
    first = report.best[0]
    assert report.trials[: len(report.best)] == report.best
    assert first.title in report.conclusion
    return first.id, first.sides


@pytest.mark.parametrize("claim", [(S, V), (S * 1.08, None), (None, V * 0.94), (S * 1.05, V * 1.05)])
def test_a_claim_that_agrees_runs_nothing(lab, claim):
    report = lab.check(*claim)
    assert report.agrees
    assert (report.trials, report.skipped, lab.run) == ((), (), [])
    assert "agrees" in report.conclusion


def test_times_that_agree_one_by_one_with_another_ratio_do_not_agree(lab):
    report = lab.check(S * 1.09, V * 0.92)
    assert not report.agrees
    assert report.ratio_agrees is False


@pytest.mark.parametrize("runs", [1, 3, 10, 50])
def test_load_counted_is_recognized(lab, runs):
    report = lab.check(*(1.03 * mean_with_load(runs, ms, FIRST, LOAD) for ms in (S, V)))
    assert ("load_counted", "both") in [(trial.id, trial.sides) for trial in report.best]
    assert ("the only run" if runs == 1 else f"the mean of {runs} runs") in report.conclusion


def test_the_first_run_counted_is_recognized(lab):
    slow_first = msgspec.structs.replace(COMPARISON.standard, first_run_ms=500.0)
    cold = msgspec.structs.replace(COMPARISON, standard=slow_first)
    lab.comparison = cold
    report = lab.check(mean_from_cold(10, S, 500.0), mean_from_cold(10, V, FIRST))
    assert best_of(report) == ("no_warm_up", "both")
    assert "mean of 10 runs" in report.best[0].title


def test_one_thread_is_recognized(lab):
    lab.factor = lambda name, variant, _: (
        {"standard": 1.9, "variant": 1.2}[name] if variant.options.get("threads") == "1" else 1.0
    )
    report = lab.check(S * 1.95, V * 1.22)
    assert best_of(report) == ("one_thread", "both")
    assert "1 thread instead of 2" in report.conclusion
    assert report.best[0].standard_ms == pytest.approx(S * 1.9)
    assert report.best[0].measured


def test_only_one_side_may_have_been_measured_wrongly(lab):
    lab.factor = lambda _, variant, __: 4.0 if variant.options.get("optimization") == "off" else 1.0
    report = lab.check(S * 4.1, V)
    assert ("passes_off", "standard") in [(trial.id, trial.sides) for trial in report.best]
    assert "for the standard only" in report.conclusion


def test_another_shape_is_recognized(lab):
    lab.factor = lambda _, __, shape: 0.5 if shape == (1, 64) else 1.0
    report = lab.check(S * 0.52, V * 0.49)
    assert best_of(report) == ("shape_1x64", "both")


def test_the_time_of_one_item_of_a_batch_is_recognized(lab):
    lab.factor = lambda _, __, shape: 4.0 if shape == (8, 128) else 1.0
    assert best_of(lab.check(S * 0.5, V * 0.5)) == ("item_of_8x128", "both")


@pytest.mark.parametrize(
    ("where", "id_"), [("cpu", "cpu_time"), ("alternating", "one_process"), ("simultaneous", "at_the_same_time")]
)
def test_what_one_process_shows_is_recognized(lab, where, id_):
    lab.together = msgspec.structs.replace(ALONE, **{where: (1.9, 1.3)})
    assert best_of(lab.check(S * 1.9, V * 1.3)) == (id_, "both")


@pytest.mark.parametrize(
    ("claim", "id_"),
    [
        ((V, S), "swapped"),
        ((S, S), "one_model_twice"),
        ((S / 1e3, V / 1e3), "seconds"),
        ((S * 100, V * 100), "sum_of_runs"),
    ],
)
def test_mistakes_of_book_keeping_are_recognized(lab, claim, id_):
    assert best_of(lab.check(*claim))[0] == id_


def test_a_batch_taken_for_an_item_is_recognized(lab):
    lab.case = msgspec.structs.replace(lab.case, shapes=(Shape(8, 128),))
    lab.factor = lambda *_: 1.0
    report = lab.check(S / 8, V / 8)
    assert best_of(report) == ("item_or_batch", "both")


def test_where_nothing_fits_the_conclusion_says_so(lab):
    report = lab.check(S * 0.3, V * 0.11)
    assert not report.best
    assert report.trials
    assert "no way of measuring that was tried gives these numbers." in report.conclusion


def test_a_ratio_that_agrees_is_said(lab):
    report = lab.check(S * 0.6, V * 0.61)
    assert not report.best
    assert report.ratio_agrees
    assert "ratio 3.28 agrees with the measured 3.23" in report.conclusion


def test_a_way_that_changes_nothing_explains_nothing(lab):
    """12 % off is within the tolerance of 15 %, but so is the usual way."""
    report = lab.check(S * 1.12, V * 1.12)
    assert not report.agrees
    assert "arena_off" not in {trial.id for trial in report.best}


def test_what_can_not_be_run_is_named_and_the_rest_is_tried(lab):
    def factor(_name: str, variant: Variant, _shape: tuple[int, int]) -> float:
        if variant.options:
            raise ContenderError("the model refuses")
        return 0.5

    lab.factor = factor
    report = lab.check(S * 0.5, V * 0.5)
    reasons = {trial.id: trial.reason for trial in report.skipped}
    assert reasons["one_thread"] == reasons["passes_off"] == "the model refuses"
    assert reasons["item_or_batch"] == "the batch is one item"
    assert "shape_1x64" in {trial.id for trial in report.best}


def test_options_that_both_sides_have_are_not_tried(lab):
    options = {"threads": "1", "optimization": "off"}
    sides = (lab.case.standard.with_options(**options), lab.case.variant.with_options(**options))
    lab.case = msgspec.structs.replace(lab.case, standard=sides[0], variant=sides[1])
    report = lab.check(S * 2, V * 2)
    assert {"one_thread", "passes_off"} <= {trial.id for trial in report.skipped}


def test_a_workload_of_one_shape_is_not_tried_at_others(lab, monkeypatch):
    monkeypatch.setattr(claim_measured, "open_bench", lambda case, _shape: StubBench(case))
    report = lab.check(S * 2, V * 2)
    skipped = {trial.id: trial.reason for trial in report.skipped}
    assert skipped["shape_1x256"] == skipped["shape_2x128"] == "the inputs keep their shape 1x128"


def test_only_claimed_sides_are_run(lab):
    report = lab.check(None, V * 2)
    assert {name for name, *_ in lab.run} == {"variant"}
    assert all(trial.standard_ms is None and trial.slowdown is None for trial in report.trials)
    assert all(trial.sides == "both" for trial in report.trials)


def test_shapes_stay_near_the_case(lab):
    lab.check(S * 1000, V * 1e-3)
    assert all(shape == (1, 128) for _, _, shape in lab.run)
    lab.check(S * 6, V * 6)
    assert {shape for *_, shape in lab.run} == {(1, 128), (4, 128), (8, 128), (1, 512), (1, 1024)}


@pytest.mark.parametrize("claim", [(None, None), (0.0, None), (5.0, -1.0), (math.nan, None), (math.inf, 1.0)])
def test_a_claim_without_a_time_is_refused(lab, claim):
    with pytest.raises(UsageError, match="above zero"):
        lab.check(*claim)


def test_the_report_is_json(lab):
    report = lab.check(S * 2, V * 2)
    assert msgspec.json.decode(msgspec.json.encode(report), type=ClaimReport) == report


def test_distance_counts_the_ratio_too():
    assert off_by(Claim(10.0, 20.0), 10.0, 20.0) == 1.0
    assert off_by(Claim(10.0, 20.0), 11.0, 18.0) == pytest.approx(1.1 * 20 / 18)
    assert off_by(Claim(None, 20.0), None, 10.0) == pytest.approx(2.0)
    assert reproduces(1.1, 2.0)
    assert not reproduces(1.2, 9.0)
    assert not reproduces(1.1, 1.12)


def test_an_unbounded_interval_agrees_with_nothing():
    assert not claims_module._agree(2 * S, Interval(S, -math.inf, math.inf))


CONDITIONS = Conditions(cores(), 1, 60.0)
FEED: Feed = {"x": np.ones((1, 4), np.float32)}


def test_one_process_times_a_pair_in_turns(tmp_path):
    quick, slow = (Timed(fake(tmp_path, str(ms), time_ms=ms), FEED) for ms in (1.0, 30.0))
    factors = measure_factors([(quick, slow), (slow, quick)], CONDITIONS)
    assert factors[0] > 3 > 1 / 3 > factors[1]


def test_one_process_tells_busy_from_sleeping(tmp_path):
    busy = Timed(fake(tmp_path, "busy", time_ms=20.0, busy=True), FEED)
    asleep = Timed(fake(tmp_path, "asleep", time_ms=20.0), FEED)
    together = measure_together(busy, asleep, CONDITIONS)
    assert together.cpu[0] > 2 * together.cpu[1]
    assert all(
        factor > 0 for group in (together.alternating, together.simultaneous, together.profiled) for factor in group
    )


def test_one_process_that_fails_says_why(tmp_path):
    good = Timed(fake(tmp_path, "good"), FEED)
    with pytest.raises(ContenderError, match="scripted"):
        measure_factors([(good, Timed(fake(tmp_path, "bad", Fault("raise")), FEED))], CONDITIONS)
    with pytest.raises(ContenderError, match="exit code 13"):
        measure_factors([(good, Timed(fake(tmp_path, "worse", Fault("exit")), FEED))], CONDITIONS)
    with pytest.raises(ContenderError, match="no answer"):
        measure_together(good, good, Conditions(cores(), 1, 0.01))


def bert_case(folder) -> Case:
    path = folder / "bert.onnx"
    path.write_bytes(tiny_bert().SerializeToString())
    side = Variant("onnxruntime", str(path))
    return Case(standard=side, variant=side.with_options(optimization="basic"), shapes=(Shape(1, 8),), threads=1)


def test_more_tokens_take_longer_in_one_process(tmp_path):
    variant = bert_case(tmp_path).standard
    small, large = (Timed(variant, tiny_feed(batch, 8)) for batch in (1, 64))
    assert measure_factors([(small, large)], CONDITIONS)[0] > 1.5


def cold_ms(variant: Variant, feed: Feed) -> float:
    """What a script without a warm-up measures of its only run, loading counted in."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    begin = time.perf_counter()
    ort.InferenceSession(variant.path, options, providers=["CPUExecutionProvider"]).run(None, feed)
    return (time.perf_counter() - begin) * 1e3


def test_a_real_time_with_the_load_in_it_is_recognized(tmp_path, monkeypatch):
    hurry(monkeypatch)
    monkeypatch.setattr(claims_module, "measured_ways", lambda *_: ())
    case = msgspec.structs.replace(bert_case(tmp_path), rounds=2, max_rounds=4)
    bench = open_bench(case, first_shape(case))
    compared = compare_at(bench)
    feed = bench.workload.feed
    claimed_ms = sorted(cold_ms(case.standard, feed) for _ in range(5))[2]
    report = check_claim(bench, compared, Claim(claimed_ms, None))
    measured_off = claimed_ms / compared.comparison.standard.latency_ms.median
    load = next(trial for trial in report.trials if trial.id == "load_counted")
    assert measured_off > 5
    assert load.off_by < math.sqrt(measured_off)
