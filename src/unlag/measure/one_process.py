"""Models in one process, as benchmark scripts have them: what unlag's contest keeps apart, brought together on purpose.

Every time is given as a factor of the usual one, run in turns in the same process, so that a machine that has become
slower since the comparison does not count. Good for telling 15 %, no less: nothing is isolated.

Started as ``python -P -m unlag.measure.one_process``: one JSON request in, one reply out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from unlag.errors import ContenderError, UnlagError
from unlag.measure import exchange
from unlag.measure.worker import die_with_parent
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.runtimes.contract import Session, find_runtime

WARMUP_RUNS = 3
ROUNDS = 4
FEWEST_RUNS = 2
SHORTEST_MS = 60.0
"""A burst is at least so many runs and so long."""
PROFILED_RUNS = 5

Run = Callable[[], None]


class Together(msgspec.Struct, frozen=True, tag="together"):
    """How much longer a run of each of two models takes than alone: (first, second)."""

    cpu: tuple[float, ...]
    """CPU time, all threads added, over wall time."""
    alternating: tuple[float, ...]
    """One run of each in turn: each starts while the other's threads still spin."""
    simultaneous: tuple[float, ...]
    """While the other one runs in another thread."""
    profiled: tuple[float, ...]
    """With the runtime's profiler switched on."""


class Factors(msgspec.Struct, frozen=True, tag="factors"):
    """Time of the other way over that of the usual way, one for each pair."""

    factors: tuple[float, ...]


class Timed(msgspec.Struct, frozen=True):
    """A model and what it is run on."""

    variant: Variant
    feed: Feed


class _Subject(msgspec.Struct, frozen=True):
    variant: Variant
    feed: str


class _Request(msgspec.Struct, frozen=True):
    kind: str
    subjects: tuple[tuple[_Subject, _Subject], ...]
    threads: int
    cores: tuple[int, ...]


class _Failed(msgspec.Struct, frozen=True, tag="failed"):
    message: str


_Reply = Together | Factors | _Failed


class Conditions(msgspec.Struct, frozen=True):
    """The bench's cores and threads, and how long an answer may take."""

    cores: tuple[int, ...]
    threads: int
    patience_s: float


def measure_factors(pairs: Sequence[tuple[Timed, Timed]], conditions: Conditions) -> tuple[float, ...]:
    """For each pair (usual, other): how many times as long the other one takes, in turns in one new process.

    Raises:
        ContenderError: a model can't be opened or run, or there is no answer in time.
    """
    reply = _ask("factors", pairs, conditions)
    if not isinstance(reply, Factors):
        raise UnlagError("one process answered something that it was not asked")
    return reply.factors


def measure_together(first: Timed, second: Timed, conditions: Conditions) -> Together:
    """How two models get along in one new process.

    Raises:
        ContenderError: a model can't be opened or run, or there is no answer in time.
    """
    reply = _ask("together", [(first, second)], conditions)
    if not isinstance(reply, Together):
        raise UnlagError("one process answered something that it was not asked")
    return reply


def _ask(kind: str, pairs: Sequence[tuple[Timed, Timed]], conditions: Conditions) -> Together | Factors:
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:

        def subject(timed: Timed, name: str) -> _Subject:
            path = Path(folder) / name
            exchange.write_feeds(path, [timed.feed])
            return _Subject(timed.variant, str(path))

        subjects = tuple(
            (subject(first, f"{number}-first"), subject(second, f"{number}-second"))
            for number, (first, second) in enumerate(pairs)
        )
        request = _Request(kind, subjects, conditions.threads, conditions.cores)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "unlag.measure.one_process"],
                input=msgspec.json.encode(request),
                capture_output=True,
                timeout=conditions.patience_s,
                check=True,
            )
            reply = msgspec.json.decode(done.stdout, type=_Reply)
        except subprocess.TimeoutExpired:
            raise ContenderError(f"no answer for {conditions.patience_s:.0f} s") from None
        except subprocess.CalledProcessError as error:
            raise ContenderError(f"the process crashed: exit code {error.returncode}") from None
    if isinstance(reply, _Failed):
        raise ContenderError(reply.message)
    return reply


def _answer(line: bytes) -> _Reply:
    try:
        request = msgspec.json.decode(line, type=_Request)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, request.cores)
        if request.kind == "factors":
            return Factors(tuple(_factor(pair, request.threads) for pair in request.subjects))
        return _together(request.subjects[0], request.threads)
    except UnlagError as error:
        return _Failed(error.message)
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; the parent says that it was skipped
        lines = str(error).strip().splitlines()
        return _Failed(lines[0] if lines else type(error).__name__)


def _opened(subjects: Sequence[_Subject], threads: int) -> list[Run]:
    """Warmed-up runs of the subjects; those of one variant share its session."""
    sessions: dict[str, Session] = {}
    runs: list[Run] = []
    for subject in subjects:
        spec = subject.variant.spec
        if spec not in sessions:
            sessions[spec] = find_runtime(subject.variant.runtime).open(subject.variant, threads)
        session = sessions[spec]
        feed = exchange.read_feeds(Path(subject.feed))[0]
        run = partial(session.run_only, {info.name: feed[info.name] for info in session.signature.inputs})
        for _ in range(WARMUP_RUNS):
            run()
        runs.append(run)
    return runs


def _factor(pair: tuple[_Subject, _Subject], threads: int) -> float:
    usual, other = _opened(pair, threads)
    factors = []
    before_ms = _burst_ms(usual)
    for _ in range(ROUNDS):
        between_ms, after_ms = _burst_ms(other), _burst_ms(usual)
        factors.append(2 * between_ms / (before_ms + after_ms))
        before_ms = after_ms
    return median(factors)


def _together(pair: tuple[_Subject, _Subject], threads: int) -> Together:
    runs = _opened(pair, threads)
    return Together(
        cpu=tuple(_cpu_factor(run) for run in runs),
        alternating=_alternating(*runs),
        simultaneous=tuple(_beside(run, other) for run, other in (runs, runs[::-1])),
        profiled=tuple(_profiled(run, subject, threads) for run, subject in zip(runs, pair, strict=True)),
    )


def _wall_ms(run: Run) -> float:
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) / 1e6


def _burst(run: Callable[[], float], shortest_ms: float = SHORTEST_MS) -> list[float]:
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < FEWEST_RUNS or (time.perf_counter() - begin) * 1e3 < shortest_ms:
        times.append(run())
    return times


def _burst_ms(run: Run) -> float:
    """Median of a burst after one run that is not counted, in which others' threads stop spinning."""
    run()
    return median(_burst(lambda: _wall_ms(run)))


def _cpu_factor(run: Run) -> float:
    """Over a whole burst: the clock of some systems is too coarse for one run."""
    run()
    begin, cpu_begin = time.perf_counter_ns(), time.process_time_ns()
    _burst(lambda: _wall_ms(run), ROUNDS * SHORTEST_MS)
    return (time.process_time_ns() - cpu_begin) / (time.perf_counter_ns() - begin)


def _alternating(first: Run, second: Run) -> tuple[float, ...]:
    factors: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        alone = _burst_ms(first), _burst_ms(second)
        turns = [(_wall_ms(first), _wall_ms(second)) for _ in range(FEWEST_RUNS + 1)]
        factors.append((median(turn[0] for turn in turns) / alone[0], median(turn[1] for turn in turns) / alone[1]))
    return median(one for one, _ in factors), median(other for _, other in factors)


def _beside(run: Run, other: Run) -> float:
    """With the other model running all the time, over alone."""
    factors = []
    for _ in range(ROUNDS):
        alone_ms = _burst_ms(run)
        stop = threading.Event()
        thread = threading.Thread(target=_keep_running, args=(other, stop), daemon=True)
        thread.start()
        try:
            factors.append(_burst_ms(run) / alone_ms)
        finally:
            stop.set()
            thread.join()
    return median(factors)


def _keep_running(run: Run, stop: threading.Event) -> None:
    while not stop.is_set():
        run()


def _profiled(run: Run, subject: _Subject, threads: int) -> float:
    feed = exchange.read_feeds(Path(subject.feed))[0]
    runtime = find_runtime(subject.variant.runtime)
    before_ms = _burst_ms(run)
    profiled_ms = runtime.profile(subject.variant, threads, feed, PROFILED_RUNS).run_ms
    return profiled_ms / ((before_ms + _burst_ms(run)) / 2)


def main() -> None:
    """Answer the one request on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal group; the parent decides
    die_with_parent()
    own_output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a runtime's library may print
    with own_output:
        own_output.write(msgspec.json.encode(_answer(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
