"""Rows a second of the whole machine: replicas of a model that work beside each other, each on cores of its own.

Each way to share the cores out is a *crew*: so many processes, with so many threads each. Crews take turns in seeded
random order, and stand still (frozen) in the turns of the others. In its turn all processes of a crew begin at one
moment and run as fast as they can; what they got done together is the crew's rate.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from unlag.errors import UnlagError
from unlag.measure import exchange
from unlag.measure.bench import Bench
from unlag.measure.monitor import disturbance, take_usage
from unlag.measure.placement import core_order, shares
from unlag.measure.process import WorkerProcess
from unlag.measure.schedule import Protocol, orders
from unlag.model.variant import Variant

Answer = TypeVar("Answer", bound=exchange.Reply)

START_IN_NS = 30_000_000
"""So far ahead lies the moment at which all begin: a request is with a process within a millisecond or two."""
LATE_SHARE = 0.05
"""Of a turn. Who begins later than that has worked beside the others for too short a time."""
LONGER_THAN_A_TURN = 2
"""Replicas slow each other down, so their turns are longer than those of one alone."""
FEWEST_ROUNDS = 3
"""With fewer undisturbed rounds the disturbed ones count too, and the result says so."""

_OWN = frozenset({"threads", "config.session.intra_op_thread_affinities"})
"""Options that say what a crew says."""


class Crew(msgspec.Struct, frozen=True):
    """One way to use the machine."""

    variant: Variant
    replicas: int
    threads: int
    """Of each copy."""

    @property
    def opened(self) -> Variant:
        """The variant as each copy opens it."""
        options = {name: value for name, value in self.variant.options.items() if name not in _OWN}
        return msgspec.structs.replace(self.variant, options=options)


class CrewRate(msgspec.Struct, frozen=True):
    """What a crew got done."""

    runs_per_s: tuple[float, ...]
    """All replicas together, of each round that counts."""
    memory_bytes: int
    """Peaks of all its processes together."""
    pinned: bool


class RaceResult(msgspec.Struct, frozen=True):
    """All crews that ran, in the same rounds."""

    crews: dict[str, CrewRate]
    failed: dict[str, str]
    """Why a crew could not run."""
    rounds: int
    """That count."""
    disturbed: int
    quiet: bool
    """Whether only undisturbed rounds count."""


class _Turn(msgspec.Struct, frozen=True):
    runs_per_s: float
    disturbed: str | None


def race(crews: Mapping[str, Crew], bench: Bench, protocol: Protocol) -> RaceResult:
    """Let the crews take turns at the bench's feed; one launch each, at most twice the wanted rounds."""
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder, contextlib.ExitStack() as ending:
        feed = Path(folder) / "feed"
        exchange.write_feeds(feed, [bench.workload.feed])
        running: dict[str, _Running] = {}
        failed: dict[str, str] = {}
        for position, (name, crew) in enumerate(crews.items()):
            bench.progress(f"throughput: starting {name}", 0.5 * position / len(crews))
            one = _Running(name, crew)
            ending.callback(one.end)
            try:
                one.start(core_order(bench.cores, bench.host.cpu), feed, protocol)
                running[name] = one
            except UnlagError as error:
                one.end()
                failed[name] = error.message
        return _play(running, failed, bench, protocol)


def _play(running: Mapping[str, _Running], failed: dict[str, str], bench: Bench, protocol: Protocol) -> RaceResult:
    names, order_of = list(running), orders(len(running), protocol.seed)
    rounds: list[dict[str, _Turn]] = []
    undisturbed: list[dict[str, _Turn]] = []
    while running and len(rounds) < 2 * protocol.rounds and len(undisturbed) < protocol.rounds:
        bench.progress(f"throughput: round {len(rounds) + 1}", 0.5 + 0.5 * len(undisturbed) / protocol.rounds)
        turns = {names[index]: running[names[index]].work(bench.cores, protocol) for index in next(order_of)}
        rounds.append(turns)
        if not any(turn.disturbed for turn in turns.values()):
            undisturbed.append(turns)
    quiet = len(undisturbed) >= min(FEWEST_ROUNDS, protocol.rounds)
    counted = undisturbed if quiet else rounds
    return RaceResult(
        crews={
            name: CrewRate(tuple(turns[name].runs_per_s for turns in counted), one.peak_bytes, one.pinned)
            for name, one in running.items()
        },
        failed=failed,
        rounds=len(counted),
        disturbed=len(rounds) - len(undisturbed),
        quiet=quiet,
    )


class _Running:
    """The processes of one crew; frozen whenever it is not their turn."""

    def __init__(self, name: str, crew: Crew) -> None:
        self.name = name
        self.pinned = True
        self._crew = crew
        self._processes: list[WorkerProcess] = []
        self._peaks: list[int] = []
        self._typical_ms = 0.0
        self._pool = ThreadPoolExecutor(crew.replicas, thread_name_prefix="unlag-crew")

    @property
    def peak_bytes(self) -> int:
        """Peak memory of all processes together."""
        return sum(self._peaks)

    def start(self, cores: Sequence[int], feed: Path, protocol: Protocol) -> None:
        """Start and warm up one process after the other.

        Raises:
            UnlagError: one can't be opened, or dies.
        """
        for number, share in enumerate(shares(cores, self._crew.replicas)):
            process = WorkerProcess(f"{self.name}, copy {number + 1}")
            self._processes.append(process)
            opening = exchange.Open(self._crew.opened, self._crew.threads, share, str(feed))
            opened = process.ask(opening, exchange.Opened, protocol.patience_s)
            self.pinned = self.pinned and opened.pinned
            patience_s = protocol.patience_s + protocol.warmup_limit_s
            warm = process.ask(exchange.WarmUp(protocol.warmup_limit_s), exchange.WarmedUp, patience_s)
            self._typical_ms = max(self._typical_ms, warm.typical_ms)
            process.freeze()

    def work(self, cores: Sequence[int], protocol: Protocol) -> _Turn:
        """One turn of all processes at once."""
        work_ms = LONGER_THAN_A_TURN * protocol.min_turn_ms
        patience_s = max(protocol.patience_s, 50 * self._typical_ms * protocol.min_runs / 1e3)
        with self._awake():
            self._ask_all(exchange.TakeTurn(1, 0.0), exchange.TurnTaken, patience_s)  # caches are cold after a switch
            own_before, before = time.process_time(), take_usage(cores)
            start_ns = time.perf_counter_ns() + START_IN_NS
            request = exchange.Work(start_ns, work_ms, protocol.min_runs)
            done = self._ask_all(request, exchange.Worked, patience_s)
            after, own_s = take_usage(cores), time.process_time() - own_before
        self._peaks = [worked.peak_memory_bytes for worked in done]
        reason = disturbance(before, after, own_s + sum(worked.cpu_s for worked in done))
        if any(worked.late_ns > LATE_SHARE * worked.time_ns for worked in done):
            reason = reason or "one of the replicas began late"
        return _Turn(sum(worked.runs / worked.time_ns for worked in done) * 1e9, reason)

    def _ask_all(self, request: exchange.Request, reply: type[Answer], patience_s: float) -> list[Answer]:
        """Each process's answer; they are asked at the same time."""
        return list(self._pool.map(lambda process: process.ask(request, reply, patience_s), self._processes))

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        for process in self._processes:
            process.thaw()
        try:
            yield
        finally:
            for process in self._processes:
                process.freeze()

    def end(self) -> None:
        """Kill all of them."""
        for process in self._processes:
            process.end()
        self._processes.clear()
        self._pool.shutdown(wait=True)
