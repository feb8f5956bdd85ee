"""The contest: who runs when, what is kept, and that the idle ones really stand still."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections import Counter

import numpy as np
import psutil
import pytest

from measure.scripted import FAST, FEED, InProcess, contest_of, fake, in_process, linear, quiet
from unlag.measure import contest as contest_module
from unlag.measure import exchange
from unlag.measure.contest import ContestResult, Launch, Sample, Turn
from unlag.measure.schedule import Protocol

__all__ = ["in_process"]  # a fixture

REAL = Protocol(rounds=3, max_rounds=6, launches=2, min_runs=4, min_turn_ms=0.0, warmup_limit_s=0.0, patience_s=60.0)


@pytest.fixture
def pair(tmp_path):
    return {"one": fake(tmp_path, "one"), "other": fake(tmp_path, "other", factor=2.0)}


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def disturb(monkeypatch: pytest.MonkeyPatch, *rounds: int, contenders: int = 2) -> None:
    """Let these rounds' first turns be disturbed."""
    turns = itertools.count()
    monkeypatch.setattr(
        contest_module,
        "disturbance",
        lambda *_: "noise" if (turn := next(turns)) // contenders in rounds and turn % contenders == 0 else None,
    )


def test_twice_the_time_is_a_ratio_of_two(tmp_path, monkeypatch):
    quiet(monkeypatch)
    contenders = {"slow": fake(tmp_path, "slow", time_ms=16.0), "quick": fake(tmp_path, "quick", time_ms=8.0)}
    with contest_of(contenders, REAL) as contest:
        result = contest.measure()
    assert 1.5 < result.ratio("slow", "quick").estimate < 2.6
    assert result.ratio("slow", "quick").estimate * result.ratio("quick", "slow").estimate == pytest.approx(1.0)
    assert 4 < result.difference_ms("slow", "quick").estimate < 16
    assert result.latency_ms("slow").estimate >= 16
    for sample in result.samples.values():
        assert len(sample.launches) == 2
        assert [turn.launch for turn in sample.turns] == [0, 0, 1]
        assert all(len(turn.times_ns) == 4 for turn in sample.turns)
        assert sample.peak_memory_bytes > 10_000_000
        assert all(launch.first_run_ms >= 8 for launch in sample.launches)


def test_idle_contenders_are_really_stopped(tmp_path, monkeypatch):
    quiet(monkeypatch)
    contenders = {name: fake(tmp_path, name, time_ms=30.0) for name in "abc"}
    seen: Counter[int] = Counter()
    turns_of: set[int] = set()
    over = threading.Event()

    def awake() -> frozenset[int]:
        found = set()
        for child in psutil.Process().children():
            try:
                if child.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}:
                    found.add(child.pid)
            except psutil.NoSuchProcess:
                continue
        return frozenset(found)

    def watch() -> None:
        while not over.wait(0.005):
            first = awake()
            if first == awake():  # not read while the turn went from one to the next
                seen[len(first)] += 1
                turns_of.update(first)

    one_launch = Protocol(rounds=2, launches=1, min_runs=4, min_turn_ms=0.0, warmup_limit_s=0.0)
    with contest_of(contenders, one_launch) as contest:
        for name in contenders:
            contest.answers(name, [FEED])
        watcher = threading.Thread(target=watch)
        watcher.start()
        contest.measure()
        over.set()
        watcher.join()
    looks = sum(seen.values())
    assert looks > 20
    assert len(turns_of) == 3
    assert seen[1] > 0.5 * looks
    assert seen[2] + seen[3] <= 0.1 * looks, f"awake at once: {dict(seen)}"


def test_nothing_is_left_behind(tmp_path, own_folder):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with contest_of({"one": fake(tmp_path)}) as contest:
        contest.answers("one", [FEED])
        assert list(own_folder.iterdir())
        assert {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not list(own_folder.iterdir())


@pytest.mark.parametrize("what", ["starting other", "round 1", "round 2", "starting one (launch 2)"])
def test_ctrl_c_leaves_nothing_behind(pair, own_folder, monkeypatch, what):
    quiet(monkeypatch)
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def interrupted(said: str, share: float | None = None) -> None:
        del share
        if what in said:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), contest_of(pair, progress=interrupted) as contest:
        contest.measure()
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not list(own_folder.iterdir())


def test_a_full_disk_at_the_start_leaves_no_folder(tmp_path, own_folder, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exchange, "write_feeds", full)
    with pytest.raises(OSError, match="No space left"), contest_of({"one": fake(tmp_path)}):
        pass
    assert not list(own_folder.iterdir())


@pytest.mark.usefixtures("in_process")
class TestRounds:
    """Logic only: the workers live in this process, and are never awake two at a time."""

    def test_every_contender_is_launched_twice_by_default(self, pair):
        with contest_of(pair) as contest:
            result = contest.measure()
        assert Counter(InProcess.started) == {"one": 2, "other": 2}
        assert result.counted == (0, 1, 2, 3)
        assert {turn.launch for turn in result.samples["one"].turns} == {0, 1}

    def test_turns_of_a_round_are_in_seeded_order(self, pair, monkeypatch):
        order: list[str] = []
        ask = InProcess.ask

        def noted(self: InProcess, request: exchange.Request, reply: type, patience_s: float) -> object:
            if isinstance(request, exchange.TakeTurn):
                order.append(self.name)
            return ask(self, request, reply, patience_s)

        monkeypatch.setattr(InProcess, "ask", noted)
        runs = []
        for seed in (1, 1, 2):
            order.clear()
            protocol = Protocol(rounds=8, launches=1, min_runs=1, min_turn_ms=0, warmup_limit_s=0, seed=seed)
            with contest_of(pair, protocol) as contest:
                contest.measure()
            runs.append(tuple(order))
        assert runs[0] == runs[1] != runs[2]
        assert all({runs[0][k], runs[0][k + 1]} == {"one", "other"} for k in range(0, 16, 2))

    def test_all_raw_times_are_kept(self, pair, monkeypatch):
        disturb(monkeypatch, 1)
        with contest_of(pair) as contest:
            result = contest.measure()
        for sample in result.samples.values():
            assert [turn.round for turn in sample.turns] == [0, 1, 2, 3, 4]
            assert all(time_ns > 0 for turn in sample.turns for time_ns in turn.times_ns)

    def test_disturbed_rounds_are_run_again_and_do_not_count(self, pair, monkeypatch):
        disturb(monkeypatch, 0, 2)
        with contest_of(pair) as contest:
            result = contest.measure()
        assert result.disturbed == (0, 2)
        assert result.counted == (1, 3, 4, 5)
        assert result.quiet
        assert len(result.medians_ms("one")) == 4
        reasons = Counter(turn.disturbed for sample in result.samples.values() for turn in sample.turns)
        assert reasons == {"noise": 2, None: 10}

    def test_where_all_is_disturbed_all_counts_and_says_so(self, pair, monkeypatch):
        disturb(monkeypatch, *range(99))
        with contest_of(pair) as contest:
            result = contest.measure()
        assert result.disturbed == result.counted == tuple(range(FAST.max_rounds))
        assert not result.quiet

    def test_three_quiet_rounds_are_enough_to_leave_the_others_out(self, pair, monkeypatch):
        disturb(monkeypatch, 0, 2, 4, 6, 7)
        with contest_of(pair) as contest:
            result = contest.measure()
        assert result.counted == (1, 3, 5)
        assert result.quiet

    def test_rounds_go_on_until_it_is_decided(self, pair):
        asked: list[int] = []

        def decided(so_far: ContestResult) -> bool:
            asked.append(len(so_far.counted))
            return len(so_far.counted) == 6

        with contest_of(pair) as contest:
            assert len(contest.measure(decided).counted) == 6
        assert asked == [4, 5, 6]

    def test_rounds_end_at_the_maximum_undecided(self, pair):
        with contest_of(pair) as contest:
            assert len(contest.measure(lambda _: False).counted) == FAST.max_rounds

    def test_progress_is_told_in_shares(self, pair):
        said: list[tuple[str, float | None]] = []
        with contest_of(pair, progress=lambda what, share=None: said.append((what, share))) as contest:
            contest.measure()
        assert {0 <= share <= 1 for _, share in said if share is not None} == {True}
        assert "timing 2 contenders: round 4 of 4" in [what for what, _ in said]

    def test_answers_are_all_outputs_of_all_feeds(self, pair):
        feeds = [FEED, {"x": np.full((2, 4), 3.0, np.float32)}]
        with contest_of(pair) as contest:
            one, other = contest.answers("one", feeds), contest.answers("other", feeds)
        assert [answer["y"].shape for answer in one] == [(1, 4), (2, 4)]
        assert np.array_equal(other[1]["y"], 2 * one[1]["y"])

    def test_an_evaluation_gives_one_row_an_item_in_order(self, tmp_path):
        feeds = [{"x": np.full((1, 4), k, np.float32)} for k in range(70)]
        with contest_of({"m": linear(tmp_path / "m.onnx", np.eye(4))}) as contest:
            rows = contest.evaluate("m", feeds, "none")
        assert rows.dtype == np.float32
        assert np.array_equal(rows, np.repeat(np.arange(70, dtype=np.float32)[:, None], 4, axis=1))

    def test_feeds_are_written_once_for_all_contenders(self, pair, monkeypatch):
        written: list[int] = []
        write = exchange.write_feeds
        feeds = [FEED, FEED]

        def noted(path, given):
            written.append(len(given))
            write(path, given)

        monkeypatch.setattr(contest_module.exchange, "write_feeds", noted)
        with contest_of(pair) as contest:
            written.clear()
            for name in pair:
                contest.evaluate(name, feeds, "none")
        assert written == [2]

    def test_a_dropped_contender_is_out_of_all_rounds(self, pair):
        with contest_of({**pair, "third": pair["one"]}) as contest:
            contest.answers("third", [FEED])
            contest.drop("third")
            assert [process.name for process in InProcess.alive] == []
            result = contest.measure()
        assert set(result.samples) == {"one", "other"}

    def test_a_retired_contender_is_started_again_when_it_is_needed(self, pair):
        with contest_of(pair) as contest:
            contest.answers("one", [FEED])
            contest.retire("one")
            contest.retire("one")
            assert not InProcess.alive
            contest.answers("one", [FEED])
        assert InProcess.started == ["one", "one"]

    def test_contenders_that_answered_first_are_timed_in_the_same_processes(self, pair):
        with contest_of(pair, Protocol(rounds=2, launches=1, min_runs=1, min_turn_ms=0, warmup_limit_s=0)) as contest:
            contest.answers("one", [FEED])
            result = contest.measure()
        assert Counter(InProcess.started) == {"one": 1, "other": 1}
        assert len(result.samples["other"].turns) == 2

    def test_turns_know_their_own_contenders_launch(self, pair):
        """Whoever was started first, and however often."""
        with contest_of(pair, Protocol(rounds=2, launches=1, min_runs=1, min_turn_ms=0, warmup_limit_s=0)) as contest:
            contest.answers("other", [FEED])
            contest.retire("other")
            contest.answers("other", [FEED])
            result = contest.measure()
        for sample, launch in ((result.samples["one"], 0), (result.samples["other"], 1)):
            assert len(sample.launches) == launch + 1
            assert {turn.launch for turn in sample.turns} == {launch}

    def test_all_are_launched_twice_even_where_every_round_is_disturbed(self, pair, monkeypatch):
        disturb(monkeypatch, *range(99))
        with contest_of(pair) as contest:
            contest.measure()
        assert Counter(InProcess.started) == {"one": 2, "other": 2}

    def test_a_profile_and_the_placement(self, tmp_path):
        with contest_of({"m": linear(tmp_path / "m.onnx"), "f": fake(tmp_path)}) as contest:
            assert [operator.op_type for operator in contest.profile("m", 2, tmp_path).profile.operators] == ["MatMul"]
            assert contest.placement("m").nodes == {"CPUExecutionProvider": 1}
            assert contest.placement("f").requested == "fake"


def made_result(times_ms: dict[str, list[float]], disturbed: tuple[int, ...] = ()) -> ContestResult:
    samples = {}
    for name, medians in times_ms.items():
        turns = [Turn(k, 0, tuple(int(1e6 * t) for t in (0.9 * m, m, 5 * m)), None) for k, m in enumerate(medians)]
        samples[name] = Sample((Launch(1.0, 1.0, 10, steady=True, pinned=True),), tuple(turns), 1)
    rounds = range(len(next(iter(times_ms.values()))))
    return ContestResult(samples, tuple(k for k in rounds if k not in disturbed), disturbed)


def test_a_round_counts_by_its_median_so_that_outliers_do_not():
    result = made_result({"a": [10.0, 12.0, 11.0], "b": [5.0, 6.0, 5.5]})
    assert result.medians_ms("a").tolist() == [10.0, 12.0, 11.0]
    assert result.latency_ms("a").estimate == 11.0
    ratio = result.ratio("a", "b")
    assert ratio.low == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2.0)
    assert result.difference_ms("a", "b").estimate == pytest.approx(5.5)


def test_only_counted_rounds_are_in_the_numbers():
    result = made_result({"a": [10.0, 99.0, 11.0], "b": [5.0, 1.0, 5.5]}, disturbed=(1,))
    assert result.medians_ms("a").tolist() == [10.0, 11.0]
    assert result.ratio("a", "b").high == pytest.approx(2.0)
