"""What the parent and its workers say to each other: one JSON line a message, arrays in files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Reduction, Signature
from unlag.runtimes.contract import Profile


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Open the variant on these cores and read the feed that will be timed."""

    variant: Variant
    threads: int
    cores: tuple[int, ...]
    feed: str
    cold: bool = False
    """Don't run it yet: all outputs of a model that gives out its inside might not fit into memory."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """Load and first run, apart."""

    signature: Signature
    load_ms: float
    first_run_ms: float
    pinned: bool


class WarmUp(msgspec.Struct, frozen=True, tag="warm_up"):
    """Run until the time is steady, or the limit is reached."""

    limit_s: float


class WarmedUp(msgspec.Struct, frozen=True, tag="warmed_up"):
    """How many runs it took, and whether the time became steady."""

    runs: int
    steady: bool
    typical_ms: float


class TakeTurn(msgspec.Struct, frozen=True, tag="take_turn"):
    """One unmeasured run, then a burst."""

    min_runs: int
    min_turn_ms: float


class TurnTaken(msgspec.Struct, frozen=True, tag="turn_taken"):
    """Raw nanoseconds of each run, and the CPU seconds that the turn used."""

    times_ns: tuple[int, ...]
    cpu_s: float
    peak_memory_bytes: int


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Read a file of feeds, and join them to wider batches where that doesn't change what the model computes."""

    feeds: str


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """How many runs the prepared feeds take."""

    runs: int


class Evaluate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Run the prepared feeds ``start`` to ``stop`` and write their reduced first outputs to ``out``."""

    start: int
    stop: int
    reduction: Reduction
    out: str


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Run all feeds of a file and write all outputs to ``out``, as feeds are written."""

    feeds: str
    out: str


class Sketch(msgspec.Struct, frozen=True, tag="sketch"):
    """Run the timed feed, a few of the outputs at a time, and write a sketch of each to ``out``."""

    outputs: tuple[str, ...]
    out: str


class MakeProfile(msgspec.Struct, frozen=True, tag="make_profile"):
    """Profile runs of the timed feed, and write the executed graph into ``folder``."""

    runs: int
    folder: str


class ProfileMade(msgspec.Struct, frozen=True, tag="profile_made"):
    """The profile; the executed graph's path, or why there is none."""

    profile: Profile
    executed: str | None
    executed_missing: str


class TimeFeeds(msgspec.Struct, frozen=True, tag="time_feeds"):
    """Run all feeds of a file once, one after the other."""

    feeds: str


class FeedsTimed(msgspec.Struct, frozen=True, tag="feeds_timed"):
    """How long all of them took, and the CPU seconds that it used."""

    time_ns: int
    cpu_s: float


class Work(msgspec.Struct, frozen=True, tag="work"):
    """Run the timed feed over and over from a moment on, which is the same one for all processes that work together."""

    start_ns: int
    """Of ``time.perf_counter_ns``, which counts for all processes of a machine from one point."""
    min_work_ms: float
    min_runs: int


class Worked(msgspec.Struct, frozen=True, tag="worked"):
    """How many runs were done in what time."""

    runs: int
    time_ns: int
    late_ns: int
    """By how much it began after the moment that was asked for."""
    cpu_s: float
    peak_memory_bytes: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Nothing to say."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request could not be met; ``usage`` when the user's input is at fault."""

    message: str
    usage: bool
    raised: bool = False
    """The runtime raised it."""


Request = Open | WarmUp | TakeTurn | Prepare | Evaluate | Answer | Sketch | MakeProfile | TimeFeeds | Work
Reply = Opened | WarmedUp | TurnTaken | Prepared | ProfileMade | FeedsTimed | Worked | Done | Failed


class _Packed(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def write_feeds(path: Path, feeds: Sequence[Feed]) -> None:
    """Write feeds to a file; an npz would need one zip entry an array, which is slow for thousands."""
    packed = [{name: _pack(array) for name, array in feed.items()} for feed in feeds]
    path.write_bytes(msgspec.msgpack.encode(packed))


def _pack(array: Array) -> _Packed:
    return _Packed(array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())


def read_feeds(path: Path) -> list[Feed]:
    """Read what ``write_feeds`` wrote."""
    packed = msgspec.msgpack.decode(path.read_bytes(), type=list[dict[str, _Packed]])
    return [
        {name: np.frombuffer(p.data, np.dtype(p.dtype)).reshape(p.shape) for name, p in feed.items()} for feed in packed
    ]
