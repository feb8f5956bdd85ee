"""The worker's logic, without a process: warm-up, turns, wide batches, and inputs that don't fit."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from measure.scripted import cores, fake, linear, onnx_model
from unlag.errors import UnlagError, UsageError
from unlag.measure import exchange, worker
from unlag.measure.worker import WIDEST_BATCH, Worker, widened
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.runtimes.fake import Fault


def feed_of(*shape: int, seed: int = 0) -> Feed:
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def opened(variant: Variant, folder: Path, feed: Feed | None = None) -> Worker:
    exchange.write_feeds(folder / "feed", [feed or feed_of(1, 4)])
    made = Worker()
    made.answer(exchange.Open(variant, 1, cores(), str(folder / "feed")))
    return made


class ScriptedSession:
    """Each run moves the scripted clock on."""

    def __init__(self, steps_ms: list[float]) -> None:
        self.steps_ms = itertools.cycle(steps_ms)
        self.now_ns = 0
        self.runs = 0

    def run_only(self, feed: Feed) -> None:
        del feed
        self.runs += 1
        self.now_ns += int(next(self.steps_ms) * 1e6)


@pytest.fixture
def scripted(monkeypatch):
    def make(*steps_ms: float) -> tuple[Worker, ScriptedSession]:
        session = ScriptedSession(list(steps_ms))
        clock = SimpleNamespace(
            perf_counter_ns=lambda: session.now_ns,
            perf_counter=lambda: session.now_ns / 1e9,
            process_time=lambda: session.now_ns / 2e9,
        )
        monkeypatch.setattr(worker, "time", clock)
        made = Worker()
        made._session = session
        return made, session

    return make


def test_opening_tells_load_and_first_run_apart(tmp_path):
    exchange.write_feeds(tmp_path / "feed", [feed_of(1, 4)])
    request = exchange.Open(fake(tmp_path, time_ms=30.0), 1, cores(), str(tmp_path / "feed"))
    reply = Worker().answer(request)
    assert reply.first_run_ms >= 30
    assert reply.load_ms < 30
    assert reply.pinned == hasattr(worker.psutil.Process, "cpu_affinity")
    assert [info.name for info in reply.signature.inputs] == ["x"]


def test_cores_that_are_not_there_are_said_not_to_be_pinned(tmp_path):
    exchange.write_feeds(tmp_path / "feed", [feed_of(1, 4)])
    reply = Worker().answer(exchange.Open(fake(tmp_path), 1, (100_000,), str(tmp_path / "feed")))
    assert not reply.pinned


def test_a_steady_model_is_warm_after_two_windows(scripted):
    made, session = scripted(5.0)
    assert made.answer(exchange.WarmUp(3.0)) == exchange.WarmedUp(10, steady=True, typical_ms=5.0)
    assert session.runs == 10


def test_slow_first_runs_lengthen_the_warm_up(scripted):
    made, _session = scripted(*[90.0 / (k + 1) for k in range(8)], *[10.0] * 100)
    reply = made.answer(exchange.WarmUp(3.0))
    assert reply.steady
    assert reply.typical_ms == 10.0
    assert 10 < reply.runs <= 18


def test_a_model_that_never_settles_is_warmed_up_until_the_limit(scripted):
    made, session = scripted(*[5.0] * 5, *[10.0] * 5)
    reply = made.answer(exchange.WarmUp(0.5))
    assert not reply.steady
    assert session.now_ns >= 0.5e9
    assert reply.runs == session.runs < 80


def test_a_slow_model_is_warmed_up_with_few_runs(scripted):
    made, _session = scripted(4000.0)
    assert made.answer(exchange.WarmUp(3.0)) == exchange.WarmedUp(3, steady=False, typical_ms=4000.0)


@pytest.mark.parametrize(("min_runs", "min_turn_ms", "runs"), [(5, 0.0, 5), (5, 200.0, 29), (5, 30.0, 5), (1, 8.0, 2)])
def test_a_turn_is_a_burst_after_one_unmeasured_run(scripted, min_runs, min_turn_ms, runs):
    made, session = scripted(7.0)
    reply = made.answer(exchange.TakeTurn(min_runs, min_turn_ms))
    assert reply.times_ns == (7_000_000,) * runs
    assert session.runs == runs + 1
    assert reply.cpu_s == pytest.approx((runs + 1) * 0.0035)
    assert reply.peak_memory_bytes > 1_000_000


def test_the_unmeasured_run_of_a_turn_is_not_among_its_times(scripted):
    made, _session = scripted(500.0, 1.0, 2.0, 3.0)
    assert made.answer(exchange.TakeTurn(3, 0.0)).times_ns == (1_000_000, 2_000_000, 3_000_000)


@pytest.mark.parametrize(
    "request_", [exchange.TakeTurn(1, 0.0), exchange.Answer("feeds", "out")], ids=["turn", "answer"]
)
def test_a_worker_that_opened_nothing_says_so(request_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exchange.write_feeds(tmp_path / "feeds", [feed_of(1, 4)])
    with pytest.raises(UnlagError, match="before it was told what to open"):
        Worker().answer(request_)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), max_size=40))
def test_widening_keeps_every_row_in_order(shapes):
    feeds = [feed_of(rows, width, seed=k) for k, (rows, width) in enumerate(shapes)]
    wide = widened(feeds)
    flat = [row.tobytes() for feed in feeds for row in feed["x"]]
    assert [row.tobytes() for feed in wide for row in feed["x"]] == flat
    for feed, following in itertools.pairwise(wide):
        fits = len(feed["x"]) + len(following["x"]) <= WIDEST_BATCH
        assert not (fits and feed["x"].shape[1:] == following["x"].shape[1:]), "two neighbors could have been joined"
    widest = max((rows for rows, _ in shapes), default=0)
    assert all(len(feed["x"]) <= max(WIDEST_BATCH, widest) for feed in wide)


def test_only_neighbors_of_equal_shape_type_and_names_are_joined():
    one = {"x": np.ones((1, 4), np.float32), "n": np.ones((1, 2), np.int64)}
    other_type = {"x": np.ones((1, 4), np.float32), "n": np.ones((1, 2), np.int32)}
    longer = {"x": np.ones((1, 5), np.float32), "n": np.ones((1, 2), np.int64)}
    fewer = {"x": np.ones((1, 4), np.float32)}
    for other in (other_type, longer, fewer):
        assert [len(feed["x"]) for feed in widened([one, other])] == [1, 1]
        assert [len(feed["x"]) for feed in widened([other, one])] == [1, 1]
    (joined,) = widened([one, one, one])
    assert {name: array.shape for name, array in joined.items()} == {"x": (3, 4), "n": (3, 2)}


def test_feeds_with_a_scalar_are_left_alone():
    feed = {"x": np.ones((1, 4), np.float32), "scale": np.float32(2.0).reshape(())}
    assert len(widened([feed, feed])) == 2


def prepared_runs(variant: Variant, folder: Path, feeds: list[Feed]) -> int:
    made = opened(variant, folder, feeds[0])
    exchange.write_feeds(folder / "feeds", feeds)
    return made.answer(exchange.Prepare(str(folder / "feeds"))).runs


@pytest.fixture
def single_rows() -> list[Feed]:
    return [{"x": row["x"] * (1 + k)} for k, row in enumerate(feed_of(1, 4, seed=k) for k in range(40))]


def test_a_model_that_keeps_rows_apart_is_evaluated_in_wide_batches(tmp_path, single_rows):
    assert prepared_runs(linear(tmp_path / "m.onnx"), tmp_path, single_rows) == 2


def test_dynamic_quantization_mixes_rows_and_is_evaluated_one_by_one(tmp_path, single_rows):
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    path = onnx_model(tmp_path / "m.onnx", nodes, {"y": ["batch", 4]})
    assert prepared_runs(Variant("onnxruntime", str(path)), tmp_path, single_rows) == 40


@pytest.mark.parametrize("keep", [0, 1])
def test_a_mean_over_the_batch_mixes_rows(tmp_path, single_rows, keep):
    axes = {"axes": np.array([0])}
    nodes = [helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=keep)]
    path = onnx_model(tmp_path / "m.onnx", nodes, {"y": [1, 4] if keep else [4]}, axes)
    assert prepared_runs(Variant("onnxruntime", str(path)), tmp_path, single_rows) == 40


def test_a_fixed_batch_is_not_widened(tmp_path, single_rows):
    path = onnx_model(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"y": [1, 4]}, batch=1)
    assert prepared_runs(Variant("onnxruntime", str(path)), tmp_path, single_rows) == 40


def test_outputs_that_cannot_be_subtracted_are_evaluated_one_by_one(tmp_path, single_rows):
    zero = {"zero": np.float32(0).reshape(())}
    path = onnx_model(
        tmp_path / "m.onnx", [helper.make_node("Greater", ["x", "zero"], ["b"])], {"b": ["batch", 4]}, zero
    )
    assert prepared_runs(Variant("onnxruntime", str(path)), tmp_path, single_rows) == 40


@pytest.mark.parametrize("wide", [True, False])
def test_rows_are_the_same_wide_or_alone(tmp_path, single_rows, wide):
    feeds = single_rows if wide else single_rows[:1]
    variant = linear(tmp_path / "m.onnx")
    made = opened(variant, tmp_path)
    exchange.write_feeds(tmp_path / "feeds", feeds)
    runs = made.answer(exchange.Prepare(str(tmp_path / "feeds"))).runs
    made.answer(exchange.Evaluate(0, runs, "none", str(tmp_path / "rows.npy")))
    weight = np.diag(np.arange(1.0, 5.0)) + 0.25
    expected = np.concatenate([feed["x"] for feed in feeds]) @ weight
    assert np.load(tmp_path / "rows.npy") == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_mean_pooling_leaves_padding_out():
    tokens = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    pooled = worker._reduce(tokens, {"attention_mask": mask}, "mean_pool")
    assert pooled.tolist() == [[2.0, 3.0, 4.0, 5.0], [0.0] * 4]
    assert worker._reduce(tokens[:, 0], {}, "mean_pool") is not None  # the model pools by itself: no mask is needed
    assert worker._reduce(tokens, {}, "none").shape == (2, 12)
    assert worker._reduce(np.float32(3).reshape(()), {}, "none").shape == (1, 1)


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ({"y": np.ones((1, 4), np.float32)}, r"needs an input 'x'.*gives y\)"),
        ({}, r"needs an input 'x'.*gives none\)"),
        ({"x": np.ones((1, 4), np.int64)}, r"'x' wants float32, the workload gives int64"),
        ({"x": np.ones((1, 5), np.float32)}, r"'x' wants shape \['batch', 4\], the workload gives \[1, 5\]"),
        ({"x": np.ones(4, np.float32)}, r"'x' wants shape \['batch', 4\], the workload gives \[4\]"),
    ],
    ids=["other name", "no inputs", "type", "shape", "rank"],
)
def test_inputs_that_do_not_fit_are_named_in_one_line(tmp_path, feed, said):
    variant = linear(tmp_path / "m.onnx")
    exchange.write_feeds(tmp_path / "feed", [feed])
    with pytest.raises(UsageError, match=said) as caught:
        Worker().answer(exchange.Open(variant, 1, cores(), str(tmp_path / "feed")))
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(variant.spec)


def test_inputs_that_the_model_does_not_have_are_left_out(tmp_path):
    made = opened(linear(tmp_path / "m.onnx"), tmp_path, {**feed_of(1, 4), "labels": np.zeros(1)})
    exchange.write_feeds(tmp_path / "feeds", [{"other": np.zeros(3), **feed_of(2, 4)}])
    made.answer(exchange.Answer(str(tmp_path / "feeds"), str(tmp_path / "out")))
    (answer,) = exchange.read_feeds(tmp_path / "out")
    assert answer["y"].shape == (2, 4)


def test_nan_on_labelled_data_is_an_error_that_names_the_model(tmp_path):
    variant = fake(tmp_path, fault=Fault("nan", at_run=1))
    made = opened(variant, tmp_path)
    exchange.write_feeds(tmp_path / "feeds", [feed_of(1, 4)])
    made.answer(exchange.Prepare(str(tmp_path / "feeds")))
    with pytest.raises(UsageError, match=r"gives NaN or infinite outputs") as caught:
        made.answer(exchange.Evaluate(0, 1, "none", str(tmp_path / "rows.npy")))
    assert variant.spec in caught.value.message
    assert not (tmp_path / "rows.npy").exists()


@pytest.mark.parametrize(
    ("error", "message", "usage"),
    [
        (RuntimeError("first\nsecond"), "first", True),
        (RuntimeError(), "RuntimeError", True),
        (MemoryError(), "out of memory", True),
        (UsageError("mend it"), "mend it", True),
        (UnlagError("ours"), "ours", False),
    ],
)
def test_whatever_is_raised_becomes_one_line(error, message, usage):
    def answer(_: exchange.Request) -> exchange.Reply:
        raise error

    raised = isinstance(error, RuntimeError)
    assert worker._guarded(answer, exchange.WarmUp(1.0)) == exchange.Failed(message, usage=usage, raised=raised)


def test_a_profile_comes_with_its_graph_or_the_reason_why_not(tmp_path):
    made = opened(fake(tmp_path), tmp_path).answer(exchange.MakeProfile(2, str(tmp_path)))
    assert made.executed is None
    assert "no graph" in made.executed_missing
    made = opened(linear(tmp_path / "m.onnx"), tmp_path).answer(exchange.MakeProfile(2, str(tmp_path)))
    assert made.executed is not None
    assert Path(made.executed).stat().st_size > 0
    assert [operator.kind for operator in made.profile.operators] == ["gemm"]
