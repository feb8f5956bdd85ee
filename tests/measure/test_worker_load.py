"""The worker's part in throughput and in batches: work from a moment on, and feeds timed as a whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from measure.scripted import cores, fake
from unlag.errors import UnlagError
from unlag.measure import exchange, worker
from unlag.measure.worker import Worker

INFO = SimpleNamespace(name="x")


class Session:
    """Each run takes the scripted time."""

    def __init__(self, run_ms: float) -> None:
        self.signature = SimpleNamespace(inputs=(INFO,))
        self.run_ns = int(run_ms * 1e6)
        self.now_ns = 5_000_000
        self.fed: list[dict[str, np.ndarray]] = []

    def run_only(self, feed: dict[str, np.ndarray]) -> None:
        self.fed.append(feed)
        self.now_ns += self.run_ns


@pytest.fixture
def scripted(monkeypatch):
    def make(run_ms: float) -> tuple[Worker, Session]:
        session = Session(run_ms)

        def sleep(seconds: float) -> None:
            session.now_ns += int(seconds * 1e9)

        clock = SimpleNamespace(
            perf_counter_ns=lambda: session.now_ns, process_time=lambda: session.now_ns / 2e9, sleep=sleep
        )
        monkeypatch.setattr(worker, "time", clock)
        made = Worker()
        made._session = session
        return made, session

    return make


@pytest.mark.parametrize(("min_ms", "min_runs", "runs"), [(100.0, 3, 13), (10.0, 3, 3), (0.0, 1, 1)])
def test_work_begins_at_the_moment_and_is_long_enough(scripted, min_ms, min_runs, runs):
    made, session = scripted(8.0)
    reply = made.answer(exchange.Work(45_000_000, min_ms, min_runs))
    assert (reply.runs, reply.time_ns, reply.late_ns) == (runs, runs * 8_000_000, 0)
    assert session.now_ns == 45_000_000 + runs * 8_000_000
    assert reply.cpu_s == pytest.approx(runs * 0.004)
    assert reply.peak_memory_bytes > 1_000_000


def test_who_comes_late_says_so_and_counts_from_then(scripted):
    made, _session = scripted(8.0)
    reply = made.answer(exchange.Work(2_000_000, 0.0, 2))
    assert (reply.late_ns, reply.time_ns) == (3_000_000, 16_000_000)


def test_all_feeds_of_a_file_are_timed_as_a_whole(scripted, tmp_path):
    made, session = scripted(8.0)
    feeds = [{"x": np.full((rows, 4), rows, np.float32), "unused": np.zeros(1)} for rows in (1, 3, 2)]
    exchange.write_feeds(tmp_path / "feeds", feeds)
    reply = made.answer(exchange.TimeFeeds(str(tmp_path / "feeds")))
    assert reply.time_ns == 24_000_000
    assert [feed["x"].shape for feed in session.fed] == [(1, 4), (3, 4), (2, 4)]
    assert all(set(feed) == {"x"} for feed in session.fed)


@pytest.mark.parametrize("request_", [exchange.Work(0, 0.0, 1), exchange.TimeFeeds("nowhere")])
def test_nothing_can_be_worked_before_something_is_open(request_):
    with pytest.raises(UnlagError, match="before it was told what to open"):
        Worker().answer(request_)


def test_a_real_session_works(tmp_path: Path):
    exchange.write_feeds(tmp_path / "feed", [{"x": np.ones((1, 4), np.float32)}])
    made = Worker()
    made.answer(exchange.Open(fake(tmp_path, time_ms=2.0), 1, cores(), str(tmp_path / "feed")))
    reply = made.answer(exchange.Work(0, 20.0, 1))
    assert 1 <= reply.runs <= 10
    assert reply.time_ns >= 20_000_000
