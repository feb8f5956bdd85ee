"""The child process: opens one variant and does what its parent's lines ask, one at a time.

Started as ``python -P -m unlag.measure.worker``. Standard output belongs to the protocol, so the file descriptor
is moved away before a runtime's library can print on it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import psutil

from unlag.errors import UnlagError, UsageError
from unlag.measure import exchange
from unlag.measure.sketch import TensorSketch, sketch_of, write_sketches
from unlag.model.workload import Array, Feed, Reduction, TensorInfo
from unlag.runtimes.contract import Runtime, Session, find_runtime

if TYPE_CHECKING:
    from unlag.model.variant import Variant

STEADY_WINDOW = 5
"""Warm-up ends when two windows of so many runs ..."""
STEADY_CHANGE = 0.03
"""... have medians within 3 % of each other."""
FEWEST_WARMUP_RUNS = 3

WIDEST_BATCH = 32
"""Rows in one run of an evaluation; more gain little and cost memory."""
ROW_TOLERANCE = 1e-4
"""Relative difference that another blocking of the same sums may make."""

OUTPUTS_AT_ONCE = 16
"""So many tensors of a model's inside are held together while they are sketched."""

_PR_SET_PDEATHSIG = 1
"""prctl(2): the kernel kills this process when its parent dies, even while it is stopped."""


class Worker:
    """The state between two requests: one open session and its feed. ``find`` tells a runtime by its name."""

    def __init__(self, find: Callable[[str], Runtime] = find_runtime) -> None:
        self._find = find
        self._runtime: Runtime | None = None
        self._variant: Variant | None = None
        self._session: Session | None = None
        self._feed: Feed = {}
        self._prepared: Sequence[Feed] = ()
        self._threads = 1

    def answer(self, request: exchange.Request) -> exchange.Reply:
        """Do what one request asks."""
        handlers: dict[type[exchange.Request], Callable[[Any], exchange.Reply]] = {
            exchange.Open: self._open,
            exchange.WarmUp: self._warm_up,
            exchange.TakeTurn: self._take_turn,
            exchange.Prepare: self._prepare,
            exchange.Evaluate: self._evaluate,
            exchange.Answer: self._answer,
            exchange.Sketch: self._sketch,
            exchange.MakeProfile: self._profile,
            exchange.TimeFeeds: self._time_feeds,
            exchange.Work: self._work,
        }
        return handlers[type(request)](request)

    @property
    def session(self) -> Session:
        """The open session; opened again where a profile has had its memory."""
        if self._session is None:
            if self._runtime is None or self._variant is None:
                raise UnlagError("the worker was asked to run before it was told what to open")
            self._session = self._runtime.open(self._variant, self._threads)
        return self._session

    def _open(self, request: exchange.Open) -> exchange.Opened:
        pinned = _pin(request.cores)
        self._variant, self._threads = request.variant, request.threads
        self._runtime = self._find(request.variant.runtime)
        begin = time.perf_counter_ns()
        self._session = self._runtime.open(request.variant, request.threads)
        loaded = time.perf_counter_ns()
        feed = exchange.read_feeds(Path(request.feed))[0]
        self._feed = _fitting(self.session, feed, request.variant)
        ready = time.perf_counter_ns()
        if not request.cold:
            self._session.run_only(self._feed)
        first = time.perf_counter_ns()
        return exchange.Opened(
            signature=self._session.signature,
            load_ms=(loaded - begin) / 1e6,
            first_run_ms=(first - ready) / 1e6,
            pinned=pinned,
        )

    def _warm_up(self, request: exchange.WarmUp) -> exchange.WarmedUp:
        times: list[float] = []
        end = time.perf_counter() + request.limit_s
        while time.perf_counter() < end or len(times) < FEWEST_WARMUP_RUNS:
            times.append(self._time_once() / 1e6)
            if len(times) >= 2 * STEADY_WINDOW:
                last = median(times[-STEADY_WINDOW:])
                before = median(times[-2 * STEADY_WINDOW : -STEADY_WINDOW])
                if abs(last / before - 1) <= STEADY_CHANGE:
                    return exchange.WarmedUp(len(times), steady=True, typical_ms=last)
        return exchange.WarmedUp(len(times), steady=False, typical_ms=median(times[-STEADY_WINDOW:]))

    def _time_once(self) -> int:
        begin = time.perf_counter_ns()
        self.session.run_only(self._feed)
        return time.perf_counter_ns() - begin

    def _take_turn(self, request: exchange.TakeTurn) -> exchange.TurnTaken:
        cpu_before = time.process_time()
        self.session.run_only(self._feed)
        times: list[int] = []
        end = time.perf_counter_ns() + int(request.min_turn_ms * 1e6)
        while len(times) < request.min_runs or time.perf_counter_ns() < end:
            times.append(self._time_once())
        cpu_s = time.process_time() - cpu_before
        return exchange.TurnTaken(times_ns=tuple(times), cpu_s=cpu_s, peak_memory_bytes=peak_memory_bytes())

    def _time_feeds(self, request: exchange.TimeFeeds) -> exchange.FeedsTimed:
        cpu_before = time.process_time()
        names = [info.name for info in self.session.signature.inputs]
        feeds = [{name: feed[name] for name in names} for feed in exchange.read_feeds(Path(request.feeds))]
        begin = time.perf_counter_ns()
        for feed in feeds:
            self.session.run_only(feed)
        return exchange.FeedsTimed(time.perf_counter_ns() - begin, time.process_time() - cpu_before)

    def _work(self, request: exchange.Work) -> exchange.Worked:
        time.sleep(max(0, request.start_ns - time.perf_counter_ns()) / 1e9)
        cpu_before, begin, runs = time.process_time(), time.perf_counter_ns(), 0
        now, end = begin, begin + int(request.min_work_ms * 1e6)
        while runs < request.min_runs or now < end:
            self.session.run_only(self._feed)
            now, runs = time.perf_counter_ns(), runs + 1
        return exchange.Worked(
            runs=runs,
            time_ns=now - begin,
            late_ns=max(0, begin - request.start_ns),
            cpu_s=time.process_time() - cpu_before,
            peak_memory_bytes=peak_memory_bytes(),
        )

    def _prepare(self, request: exchange.Prepare) -> exchange.Prepared:
        feeds = exchange.read_feeds(Path(request.feeds))
        wide = widened(feeds)
        self._prepared = wide if len(wide) < len(feeds) and self._keeps_rows_apart(wide) else feeds
        return exchange.Prepared(runs=len(self._prepared))

    def _keeps_rows_apart(self, wide: Sequence[Feed]) -> bool:
        """Whether a row's output is the same in a wide batch as alone. Dynamic quantization mixes rows."""
        for feed in (wide[0], wide[len(wide) // 2], wide[-1]):
            try:
                together = self._first_output(feed)
                rows = (slice(0, 1), slice(len(together) - 1, len(together)))
                alone = [self._first_output({name: array[row] for name, array in feed.items()}) for row in rows]
                same = _same_rows(np.concatenate(alone), np.concatenate([together[:1], together[-1:]]))
            except Exception:  # noqa: BLE001 - a model with a fixed batch refuses the wide one, each runtime in its own way
                return False
            if not same:
                return False
        return True

    def _first_output(self, feed: Feed) -> Array:
        arrays = _numbers(self._run(feed))
        if not arrays:
            raise UsageError(f"{self._name} has no output of numbers that could be scored")
        return next(iter(arrays.values()))

    def _evaluate(self, request: exchange.Evaluate) -> exchange.Done:
        feeds = self._prepared[request.start : request.stop]
        rows = [_reduce(self._first_output(feed), feed, request.reduction) for feed in feeds]
        stacked = np.concatenate(rows)
        if not np.isfinite(stacked).all():
            raise UsageError(f"{self._name} gives NaN or infinite outputs on the labelled workload")
        np.save(request.out, stacked, allow_pickle=False)
        return exchange.Done()

    def _answer(self, request: exchange.Answer) -> exchange.Done:
        feeds = exchange.read_feeds(Path(request.feeds))
        exchange.write_feeds(Path(request.out), [_numbers(self._run(feed)) for feed in feeds])
        return exchange.Done()

    def _sketch(self, request: exchange.Sketch) -> exchange.Done:
        sketches: dict[str, TensorSketch] = {}
        for start in range(0, len(request.outputs), OUTPUTS_AT_ONCE):
            names = request.outputs[start : start + OUTPUTS_AT_ONCE]
            for name, array in self.session.run(self._feed, names).items():
                sketch = sketch_of(array)
                if sketch is not None:
                    sketches[name] = sketch
        write_sketches(Path(request.out), sketches)
        return exchange.Done()

    def _run(self, feed: Feed) -> dict[str, Array]:
        if self._variant is None:
            raise UnlagError("the worker was asked to run before it was told what to open")
        return dict(self.session.run(_fitting(self.session, feed, self._variant)))

    @property
    def _name(self) -> str:
        return "the model" if self._variant is None else self._variant.spec

    def _profile(self, request: exchange.MakeProfile) -> exchange.ProfileMade:
        if self._runtime is None or self._variant is None:
            raise UnlagError("the worker was asked to profile before it was told what to open")
        self._session = None  # profiling opens its own, and two would hold all weights twice
        profile = self._runtime.profile(self._variant, self._threads, self._feed, request.runs)
        executed = self._runtime.executed_graph(self._variant, self._threads, Path(request.folder))
        if isinstance(executed, Path):
            return exchange.ProfileMade(profile=profile, executed=str(executed), executed_missing="")
        return exchange.ProfileMade(profile=profile, executed=None, executed_missing=executed.reason)


def widened(feeds: Sequence[Feed]) -> list[Feed]:
    """Neighbors of equal shape joined along the first axis, up to ``WIDEST_BATCH`` rows a feed."""
    wide: list[list[Feed]] = []
    rows = 0
    for feed in feeds:
        count = next(iter(feed.values())).shape[0] if all(array.ndim for array in feed.values()) else WIDEST_BATCH
        same = bool(wide) and _same_kind(wide[-1][0], feed)
        if same and rows + count <= WIDEST_BATCH:
            wide[-1].append(feed)
            rows += count
        else:
            wide.append([feed])
            rows = count
    return [_joined(group) for group in wide]


def _joined(group: Sequence[Feed]) -> Feed:
    if len(group) == 1:
        return group[0]
    return {name: np.concatenate([feed[name] for feed in group]) for name in group[0]}


def _same_kind(one: Feed, other: Feed) -> bool:
    """Whether two feeds have the same inputs, of rows of the same shape and type."""
    kinds = [{name: (array.shape[1:], array.dtype) for name, array in feed.items()} for feed in (one, other)]
    return kinds[0] == kinds[1]


def _same_rows(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return False
    largest = max(np.abs(other).max(), 1e-12)
    return bool(np.abs(np.subtract(one, other)).max() <= ROW_TOLERANCE * largest)


def _numbers(outputs: Feed) -> Feed:
    """The outputs that can be compared: no texts, sequences or maps."""
    return {name: x for name, x in outputs.items() if isinstance(x, np.ndarray) and x.dtype != np.object_}


def _fitting(session: Session, feed: Feed, variant: Variant) -> Feed:
    """Those inputs of the feed that the model has, checked against its signature."""
    chosen: dict[str, Array] = {}
    for wanted in session.signature.inputs:
        if wanted.name not in feed:
            given = ", ".join(feed) or "none"
            raise UsageError(
                f"{variant.spec} needs an input {wanted.name!r} that the workload does not give (it gives {given})"
            )
        _check_shape(wanted, feed[wanted.name], variant)
        chosen[wanted.name] = _cast(wanted, feed[wanted.name], variant)
    return chosen


def _cast(wanted: TensorInfo, array: Array, variant: Variant) -> Array:
    """The array in the type that the model takes: floats may be rounded, integers must keep every value."""
    given = "string" if array.dtype.kind == "U" else array.dtype.name
    if wanted.dtype == given:
        return array
    for kind in ("float", "int"):
        if kind in wanted.dtype and kind in given and wanted.dtype in np.sctypeDict:
            cast: Array = array.astype(wanted.dtype)
            if kind == "float" or np.array_equal(cast, array):
                return cast
    raise UsageError(f"{variant.spec}: input {wanted.name!r} wants {wanted.dtype}, the workload gives {given}")


def _check_shape(wanted: TensorInfo, array: Array, variant: Variant) -> None:
    what = f"{variant.spec}: input {wanted.name!r} wants"
    shape = wanted.shape
    if shape is None:
        return
    fixed = [(want, got) for want, got in zip(shape, array.shape, strict=False) if isinstance(want, int)]
    if len(shape) != array.ndim or any(want != got for want, got in fixed):
        raise UsageError(f"{what} shape {list(shape)}, the workload gives {list(array.shape)}")


def _reduce(output: Array, feed: Feed, reduction: Reduction) -> Array:
    if reduction == "none":
        return output.reshape(output.shape[0], -1) if output.ndim else output.reshape(1, 1)
    if output.ndim == 2:  # the model pools by itself
        return output
    mask = np.asarray(feed["attention_mask"], np.float32)[:, :, None]
    tokens = np.asarray(output, np.float32)
    pooled: Array = (tokens * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1.0)
    return pooled


def _pin(cores: tuple[int, ...]) -> bool:
    """Keep this process on the cores; macOS offers no way, and the reply says so."""
    process = psutil.Process()
    if not hasattr(process, "cpu_affinity"):
        return False
    try:
        process.cpu_affinity(list(cores))
    except (OSError, ValueError, psutil.Error):
        return False
    return True


def peak_memory_bytes() -> int:
    """This process's peak resident memory.

    Linux: VmHWM of /proc/self/status, since ru_maxrss keeps the parent's peak over exec.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    memory = psutil.Process().memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; other systems close the pipe, which ends it too."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(answer: Callable[[exchange.Request], exchange.Reply]) -> None:
    """Read requests until the parent closes the pipe."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    encoder = msgspec.json.Encoder()
    decoder: msgspec.json.Decoder[exchange.Request] = msgspec.json.Decoder(exchange.Request)
    for line in sys.stdin.buffer:
        out.write(encoder.encode(_guarded(answer, decoder.decode(line))) + b"\n")
        out.flush()


def _guarded(answer: Callable[[exchange.Request], exchange.Reply], request: exchange.Request) -> exchange.Reply:
    try:
        return answer(request)
    except UnlagError as error:
        return exchange.Failed(error.message, usage=isinstance(error, UsageError))
    except MemoryError:
        return exchange.Failed("out of memory", usage=True)
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; the parent names the contender
        lines = str(error).strip().splitlines()
        return exchange.Failed(lines[0] if lines else type(error).__name__, usage=True, raised=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal group; the parent decides
    die_with_parent()
    serve(Worker().answer)
