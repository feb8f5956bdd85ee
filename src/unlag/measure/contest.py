"""The contest: several variants timed in isolated processes, interleaved, the idle ones frozen."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from unlag.measure import exchange
from unlag.measure.monitor import disturbance, take_usage
from unlag.measure.process import WorkerProcess
from unlag.measure.progress import Progress, silent
from unlag.measure.schedule import Protocol, orders
from unlag.measure.sketch import TensorSketch, read_sketches
from unlag.measure.statistics import Floats, Interval, mean_interval, ratio_interval
from unlag.model.variant import Variant
from unlag.model.workload import Feed, Reduction, Rows
from unlag.runtimes.contract import Placement, find_runtime

EVALUATION_PARTS = 20
"""Pieces in which an evaluation is asked for, so that its progress is seen."""

FEWEST_ROUNDS = 3
"""With fewer undisturbed rounds the disturbed ones count too, and the result says so."""


class Launch(msgspec.Struct, frozen=True):
    """One process of one contender, before it was steady."""

    load_ms: float
    first_run_ms: float
    warmup_runs: int
    steady: bool
    pinned: bool


class Turn(msgspec.Struct, frozen=True):
    """One contender's burst in one round: raw nanoseconds, and what disturbed it."""

    round: int
    launch: int
    times_ns: tuple[int, ...]
    disturbed: str | None


class Sample(msgspec.Struct, frozen=True):
    """All that was timed of one contender."""

    launches: tuple[Launch, ...]
    turns: tuple[Turn, ...]
    peak_memory_bytes: int


class ContestResult(msgspec.Struct, frozen=True):
    """Raw times of all contenders by name, and which rounds count."""

    samples: dict[str, Sample]
    counted: tuple[int, ...]
    """Rounds that count."""
    disturbed: tuple[int, ...]
    """Rounds in which somebody was disturbed."""

    @property
    def quiet(self) -> bool:
        """Whether only undisturbed rounds count."""
        return not set(self.counted) & set(self.disturbed)

    def medians_ms(self, name: str) -> Floats:
        """Median run time of each counted round."""
        counted = set(self.counted)
        turns = [turn for turn in self.samples[name].turns if turn.round in counted]
        return np.array([np.median(turn.times_ns) / 1e6 for turn in turns])

    def latency_ms(self, name: str) -> Interval:
        """Median run time, with the interval of the rounds' medians around it."""
        medians = self.medians_ms(name)
        spread = mean_interval(medians)
        center = float(np.median(medians))
        return Interval(center, center - (spread.estimate - spread.low), center + (spread.high - spread.estimate))

    def ratio(self, numerator: str, denominator: str) -> Interval:
        """Ratio of two contenders' times, paired by round."""
        return ratio_interval(self.medians_ms(numerator), self.medians_ms(denominator))

    def difference_ms(self, minuend: str, subtrahend: str) -> Interval:
        """Difference of two contenders' times, paired by round."""
        return mean_interval(self.medians_ms(minuend) - self.medians_ms(subtrahend))


class Contest:
    """Keeps the contenders' processes; use it as a context manager, so that none is left behind or frozen."""

    def __init__(  # noqa: PLR0913 - a contest has these parts
        self,
        contenders: Mapping[str, Variant],
        feed: Feed,
        *,
        cores: Sequence[int],
        threads: int,
        protocol: Protocol | None = None,
        progress: Progress = silent,
        start: Callable[[str], WorkerProcess] | None = None,
    ) -> None:
        self._start = start
        self._contenders = dict(contenders)
        self._feed = feed
        self._cores = tuple(cores)
        self._threads = threads
        self._protocol = protocol or Protocol()
        self._progress = progress
        self._processes: dict[str, WorkerProcess] = {}
        self._turns: dict[str, list[Turn]] = {name: [] for name in contenders}
        self._launches: dict[str, list[Launch]] = {name: [] for name in contenders}
        self._peaks: dict[str, int] = dict.fromkeys(contenders, 0)
        self._typical_ms: dict[str, float] = {}
        self._written: list[tuple[Sequence[Feed], Path]] = []

    def __enter__(self) -> Self:
        """Make the folder for arrays."""
        self._folder = Path(tempfile.mkdtemp(prefix="unlag-"))
        try:
            exchange.write_feeds(self._folder / "feed", [self._feed])
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill whatever runs or is frozen, and drop the arrays."""
        self._end_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    def measure(self, decided: Callable[[ContestResult], bool] | None = None) -> ContestResult:
        """Run rounds: as many undisturbed ones as are wanted, then more until ``decided``, at most the maximum."""
        protocol = self._protocol
        order_of = orders(len(self._contenders), protocol.seed)
        number, good_in_launch, in_launch = 0, 0, 0
        disturbed: list[int] = []
        while number < protocol.max_rounds:
            enough = good_in_launch >= protocol.rounds_per_launch or in_launch >= 2 * protocol.rounds_per_launch
            if not self._processes or enough:
                self._launch_all()
                good_in_launch, in_launch = 0, 0
            self._report_round(number, len(disturbed))
            reasons = self._play(number, next(order_of))
            if reasons:
                disturbed.append(number)
            else:
                good_in_launch += 1
            in_launch += 1
            number += 1
            good = number - len(disturbed)
            if good >= protocol.rounds and (decided is None or decided(self._result(number, disturbed))):
                break
        return self._result(number, disturbed)

    def _report_round(self, number: int, disturbed: int) -> None:
        wanted = self._protocol.rounds
        good = number - disturbed
        name = f"round {number + 1}" + (f" of {wanted}" if number < wanted else " (until it is decided)")
        self._progress(f"timing {len(self._contenders)} contenders: {name}", min(0.9, good / wanted))

    def _play(self, number: int, order: tuple[int, ...]) -> list[str]:
        """One round; the reasons why it was disturbed."""
        names = list(self._contenders)
        reasons = []
        for index in order:
            name = names[index]
            with self._awake(name) as process:
                own_before = time.process_time()
                before = take_usage(self._cores)
                reply = process.ask(self._turn_request(), exchange.TurnTaken, self._patience_s(name))
                after = take_usage(self._cores)
                own_s = time.process_time() - own_before
            reason = disturbance(before, after, reply.cpu_s + own_s)
            launch = len(self._launches[name]) - 1
            self._turns[name].append(Turn(number, launch, reply.times_ns, reason))
            self._peaks[name] = max(self._peaks[name], reply.peak_memory_bytes)
            if reason:
                reasons.append(reason)
        return reasons

    def _turn_request(self) -> exchange.TakeTurn:
        return exchange.TakeTurn(self._protocol.min_runs, self._protocol.min_turn_ms)

    def _patience_s(self, name: str) -> float:
        """How long a turn may take: what the protocol allows, or fifty times what the warm-up makes it look like."""
        expected_s = max(self._protocol.min_turn_ms, self._typical_ms[name] * (self._protocol.min_runs + 1)) / 1e3
        return max(self._protocol.patience_s, 50 * expected_s)

    def _result(self, rounds: int, disturbed: Sequence[int]) -> ContestResult:
        good = tuple(number for number in range(rounds) if number not in disturbed)
        enough = len(good) >= min(FEWEST_ROUNDS, self._protocol.rounds)
        return ContestResult(
            samples={
                name: Sample(
                    launches=tuple(self._launches[name]),
                    turns=tuple(self._turns[name]),
                    peak_memory_bytes=self._peaks[name],
                )
                for name in self._contenders
            },
            counted=good if enough else tuple(range(rounds)),
            disturbed=tuple(disturbed),
        )

    def _launch_all(self) -> None:
        """End the old processes and start new ones, warmed up and frozen."""
        self._end_all()
        for name in self._contenders:
            launch = len(self._launches[name]) + 1
            self._progress(f"timing {len(self._contenders)} contenders: starting {name} (launch {launch})")
            self._launch(name)

    def _launch(self, name: str, *, warm: bool = True) -> None:
        process = (self._start or WorkerProcess)(name)
        self._processes[name] = process
        request = exchange.Open(
            self._contenders[name], self._threads, self._cores, str(self._folder / "feed"), cold=not warm
        )
        opened = process.ask(request, exchange.Opened, self._protocol.patience_s)
        if warm:
            self._warm_up(name, process, opened)
        process.freeze()

    def _warm_up(self, name: str, process: WorkerProcess, opened: exchange.Opened) -> None:
        warm = process.ask(
            exchange.WarmUp(self._protocol.warmup_limit_s),
            exchange.WarmedUp,
            self._protocol.patience_s + self._protocol.warmup_limit_s,
        )
        self._typical_ms[name] = warm.typical_ms
        self._launches[name].append(
            Launch(opened.load_ms, opened.first_run_ms, warm.runs, steady=warm.steady, pinned=opened.pinned)
        )

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.end()
        self._processes.clear()

    @contextlib.contextmanager
    def _awake(self, name: str, *, warm: bool = True) -> Iterator[WorkerProcess]:
        """The contender's process, thawed for as long as it is needed; started cold where nothing will be timed."""
        if name not in self._processes:
            self._launch(name, warm=warm)
        process = self._processes[name]
        process.thaw()
        try:
            yield process
        finally:
            process.freeze()

    def evaluate(self, name: str, feeds: Sequence[Feed], reduction: Reduction) -> Rows:
        """The contender's reduced first outputs for all feeds, [rows, width]."""
        out = self._folder / "rows.npy"
        parts: list[Rows] = []
        with self._awake(name) as process:
            prepare = exchange.Prepare(str(self._write_once(feeds)))
            ready = process.ask(prepare, exchange.Prepared, self._evaluation_patience_s)
            step = max(1, ready.runs // EVALUATION_PARTS)
            for start in range(0, ready.runs, step):
                self._progress(f"accuracy of {name}: {start} of {ready.runs} runs")
                request = exchange.Evaluate(start, start + step, reduction, str(out))
                process.ask(request, exchange.Done, self._evaluation_patience_s)
                parts.append(np.load(out, allow_pickle=False).astype(np.float32, copy=False))
        return np.concatenate(parts)

    def answers(self, name: str, feeds: Sequence[Feed]) -> list[Feed]:
        """All outputs of the contender for all feeds."""
        out = self._folder / "answers"
        with self._awake(name) as process:
            request = exchange.Answer(str(self._write_once(feeds)), str(out))
            process.ask(request, exchange.Done, self._evaluation_patience_s)
        answers = exchange.read_feeds(out)
        out.unlink()
        return answers

    def sketch(self, name: str, outputs: Sequence[str]) -> dict[str, TensorSketch]:
        """Sketches of these outputs of the contender, from a run of the timed feed."""
        out = self._folder / "sketches"
        with self._awake(name, warm=False) as process:
            process.ask(exchange.Sketch(tuple(outputs), str(out)), exchange.Done, self._evaluation_patience_s)
        sketches = read_sketches(out)
        out.unlink()
        return sketches

    def profile(self, name: str, runs: int, folder: Path) -> exchange.ProfileMade:
        """Profile the contender, and have its executed graph written into ``folder``."""
        with self._awake(name) as process:
            request = exchange.MakeProfile(runs, str(folder))
            return process.ask(request, exchange.ProfileMade, self._evaluation_patience_s)

    def drop(self, name: str) -> None:
        """Take a contender out of the contest for good."""
        self.retire(name)
        del self._contenders[name], self._turns[name], self._launches[name], self._peaks[name]

    def retire(self, name: str) -> None:
        """End a contender's process, to make room for others."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.end()

    def placement(self, name: str) -> Placement:
        """Which provider ran how many of the contender's nodes."""
        variant = self._contenders[name]
        with tempfile.TemporaryDirectory() as folder:
            profile = self.profile(name, 1, Path(folder)).profile
        return find_runtime(variant.runtime).placement(profile, variant)

    @property
    def _evaluation_patience_s(self) -> float:
        """A whole data set may take long; a hang is still noticed."""
        return max(3600.0, self._protocol.patience_s)

    def _write_once(self, feeds: Sequence[Feed]) -> Path:
        for known, path in self._written:
            if known is feeds:
                return path
        path = self._folder / f"feeds-{len(self._written)}"
        exchange.write_feeds(path, feeds)
        self._written.append((feeds, path))
        return path
