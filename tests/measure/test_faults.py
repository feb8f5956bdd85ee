"""Contenders that crash, hang, are killed or raise: one line that names them, and no process left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from measure.scripted import FEED, contest_of, fake, quiet
from unlag.errors import ContenderError, UnlagError
from unlag.measure import exchange
from unlag.measure.process import WorkerProcess
from unlag.measure.schedule import Protocol
from unlag.runtimes.fake import Fault

PROTOCOL = Protocol(rounds=9, launches=1, min_runs=4, min_turn_ms=0.0, warmup_limit_s=0.0, patience_s=60.0)
"""Warm-up takes three runs and the first run one, so a fault at run 10 is in the middle of a round."""
IN_A_ROUND = 10


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, monkeypatch):
    """After every fault: no process, no file."""
    quiet(monkeypatch)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = children()
    yield
    assert not children() - before
    assert not list(folder.iterdir())


def failing(tmp_path: Path, fault: Fault | None, protocol: Protocol = PROTOCOL, **facts: object) -> ContenderError:
    contenders = {"healthy": fake(tmp_path, "healthy"), "broken": fake(tmp_path, "broken", fault, **facts)}
    with pytest.raises(ContenderError) as caught, contest_of(contenders, protocol) as contest:
        contest.measure()
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2
    return caught.value


def test_a_crash_in_a_round_is_named_with_its_exit_code(tmp_path):
    error = failing(tmp_path, Fault("exit", IN_A_ROUND))
    assert error.message == "broken crashed while it was measured: exit code 13"


def test_a_crash_while_it_is_opened(tmp_path):
    assert "broken crashed" in failing(tmp_path, Fault("exit")).message


def test_an_exception_is_named_with_its_first_line(tmp_path):
    assert failing(tmp_path, Fault("raise", IN_A_ROUND)).message == "broken: the scripted fault"


def test_a_hang_ends_with_the_patience(tmp_path):
    impatient = Protocol(rounds=9, launches=1, min_runs=4, min_turn_ms=0.0, warmup_limit_s=0.0, patience_s=3.0)
    begin = time.monotonic()
    error = failing(tmp_path, Fault("hang", IN_A_ROUND), impatient)
    assert error.message == "broken hangs: no answer for 3 s; it was ended"
    assert "--patience" in error.hint
    assert time.monotonic() - begin < 30


def test_a_script_that_cannot_be_read(tmp_path):
    (tmp_path / "broken.json").write_text("no json")
    contenders = {"broken": fake(tmp_path, "other")}
    Path(contenders["broken"].path).write_text("no json")
    with (
        pytest.raises(ContenderError, match=r"broken: .*is not a script for the fake runtime"),
        contest_of(contenders) as c,
    ):
        c.measure()


@pytest.mark.parametrize("frozen", [False, True], ids=["in its turn", "while it stands still"])
def test_a_contender_that_is_killed_from_outside(tmp_path, frozen):
    contenders = {name: fake(tmp_path, name, time_ms=30.0) for name in ("one", "other")}
    killed = threading.Event()

    def kill() -> None:
        end = time.monotonic() + 30
        while not killed.is_set() and time.monotonic() < end:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if (child.status() == psutil.STATUS_STOPPED) == frozen and not killed.is_set():
                        child.kill()
                        killed.set()
            time.sleep(0.005)

    def started(what: str, share: float | None = None) -> None:
        del share
        if "round 1 " in what:
            threading.Thread(target=kill, daemon=True).start()

    with pytest.raises(ContenderError) as caught, contest_of(contenders, PROTOCOL, progress=started) as contest:
        contest.measure()
    assert killed.is_set()
    assert caught.value.message in {
        f"{name} was killed while it was measured: SIGKILL (out of memory?)" for name in ("one", "other")
    }


def test_the_other_contenders_go_on_without_one_that_crashed(tmp_path):
    contenders = {"healthy": fake(tmp_path, "healthy"), "broken": fake(tmp_path, "broken", Fault("exit", 5))}
    with contest_of(contenders, PROTOCOL) as contest:
        contest.answers("broken", [FEED])
        with pytest.raises(ContenderError):
            contest.answers("broken", [FEED] * 3)
        with pytest.raises(ContenderError, match="broken crashed"):
            contest.answers("broken", [FEED])
        contest.drop("broken")
        assert set(contest.measure().samples) == {"healthy"}


def test_the_last_words_of_a_crash_are_kept(tmp_path):
    exchange.write_feeds(tmp_path / "feed", [FEED])
    worker = WorkerProcess("talker")
    stdin = worker._process.stdin
    assert stdin is not None
    stdin.write(b"{}\n")
    try:
        with pytest.raises(ContenderError, match=r"talker crashed while it was measured: exit code 1, last words: \S+"):
            worker.ask(exchange.WarmUp(0.0), exchange.WarmedUp, 30.0)
    finally:
        worker.end()


def test_an_answer_of_another_kind_is_our_fault(tmp_path):
    exchange.write_feeds(tmp_path / "feed", [FEED])
    worker = WorkerProcess("odd")
    try:
        with pytest.raises(UnlagError, match="odd: the worker was asked to run before") as caught:
            worker.ask(exchange.WarmUp(0.0), exchange.WarmedUp, 30.0)
        assert caught.value.exit_code == 4
        worker.ask(exchange.Open(fake(tmp_path), 1, (0,), str(tmp_path / "feed")), exchange.Opened, 30.0)
        with pytest.raises(UnlagError, match="odd answered WarmedUp where Done was due"):
            worker.ask(exchange.WarmUp(0.0), exchange.Done, 30.0)
    finally:
        worker.end()


def test_a_worker_that_hangs_is_ended_at_once(tmp_path):
    exchange.write_feeds(tmp_path / "feed", [FEED])
    worker = WorkerProcess("sleeper")
    try:
        worker.ask(exchange.Open(fake(tmp_path), 1, (0,), str(tmp_path / "feed")), exchange.Opened, 30.0)
        worker.freeze()
        with pytest.raises(ContenderError, match="sleeper hangs"):
            worker.ask(exchange.WarmUp(0.0), exchange.WarmedUp, 0.3)
        assert is_gone(worker.pid)
    finally:
        worker.end()


def test_a_worker_may_be_ended_twice_and_while_it_is_frozen(tmp_path):
    exchange.write_feeds(tmp_path / "feed", [FEED])
    worker = WorkerProcess("one")
    worker.ask(exchange.Open(fake(tmp_path), 1, (0,), str(tmp_path / "feed")), exchange.Opened, 30.0)
    worker.freeze()
    worker.end()
    worker.end()
    worker.freeze()
    worker.thaw()
    assert is_gone(worker.pid)


def test_a_worker_imports_nothing_from_the_users_folder(tmp_path, monkeypatch):
    exchange.write_feeds(tmp_path / "feed", [FEED])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('imported from the folder of the user')\n")
    worker = WorkerProcess("one")
    try:
        worker.ask(exchange.Open(fake(tmp_path), 1, (0,), str(tmp_path / "feed")), exchange.Opened, 30.0)
    finally:
        worker.end()


CHATTY = """
import os
from unlag.measure import exchange, worker

def answer(request):
    print("noise of Python", flush=True)
    os.write(1, b"noise of a library\\n")
    return exchange.Done()

worker.serve(answer)
"""


def test_what_a_library_prints_is_not_taken_for_a_reply():
    """Standard output carries the protocol."""
    request = msgspec.json.encode(exchange.WarmUp(1.0)) + b"\n"
    done = subprocess.run([sys.executable, "-c", CHATTY], input=2 * request, capture_output=True, check=True)
    assert done.stdout == 2 * (msgspec.json.encode(exchange.Done()) + b"\n")
    assert done.stderr.count(b"noise") == 4


PARENT = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from measure.scripted import contest_of, fake
from unlag.measure.schedule import Protocol
import psutil

def told(what, share=None):
    if "round 1 " in what:
        print(*[child.pid for child in psutil.Process().children()], flush=True)

contenders = {{name: fake(Path({folder!r}), name, time_ms=50.0) for name in ("one", "other")}}
protocol = Protocol(rounds=1, launches=1, min_runs=10_000, warmup_limit_s=0.0)
with contest_of(contenders, protocol, progress=told) as contest:
    contest.measure()
"""


@pytest.fixture
def parent(tmp_path):
    code = PARENT.format(path=[str(Path(__file__).parents[1])], folder=str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        yield process, pids
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()


def wait_until_gone(pids: list[int]) -> list[int]:
    end = time.monotonic() + 20
    while (left := [pid for pid in pids if not is_gone(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process's life to its parent's")
def test_workers_die_with_a_parent_that_is_killed(parent):
    process, pids = parent
    assert len(pids) == 2
    assert not any(is_gone(pid) for pid in pids)
    statuses = []
    end = time.monotonic() + 20
    while statuses.count(psutil.STATUS_STOPPED) != 1 and time.monotonic() < end:
        statuses = [psutil.Process(pid).status() for pid in pids]
    assert statuses.count(psutil.STATUS_STOPPED) == 1, "one runs, the other one stands still"
    process.kill()
    process.wait()
    assert not wait_until_gone(pids)


def test_ctrl_c_to_the_parent_alone_ends_the_workers_and_its_folder(parent, tmp_path):
    process, pids = parent
    assert list(tmp_path.glob("unlag-*"))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    assert not wait_until_gone(pids)
    assert not list(tmp_path.glob("unlag-*"))
