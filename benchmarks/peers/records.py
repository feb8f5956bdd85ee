"""What the steps gave, in one JSON file that is whole after every step, so that a run can be gone on with."""

from __future__ import annotations

from pathlib import Path

import msgspec
from benchmarks.peers.contract import Artifact

from unlag.measure.statistics import Interval, ratio_interval


class Made(msgspec.Struct, frozen=True, kw_only=True, tag="made"):
    """A model that a tool made."""

    key: str
    artifact: Artifact
    seconds: float
    """That the tool took: its imports count, making runs to calibrate on does not."""


class Scored(msgspec.Struct, frozen=True, kw_only=True, tag="scored"):
    """How right a model is."""

    key: str
    metric: str
    points: float
    """0 to 100, higher is better."""
    top1: float | None = None
    """Share of rows with the standard's winner; nothing where outputs have no classes, or labels say more."""
    alike: float | None = None
    """Cosine of the raced model's outputs to those of the one for all shapes, where that was scored in its place."""
    largest_error: float | None = None
    """Largest absolute difference to the standard's outputs, over their largest absolute value; without labels."""
    seconds: float = 0.0


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One contender's times in a race."""

    peer: str
    medians_ms: tuple[float, ...]
    """Of each round that counts; the same rounds for all contenders."""
    first_answer_ms: float
    """Loading and the first run of the first launch: where models are compiled, that is when."""
    peak_memory_bytes: int
    steady: bool

    def ratio_to(self, other: Timed) -> Interval:
        """This one's time over the other's, paired by round."""
        return ratio_interval(self.medians_ms, other.medians_ms)


class Raced(msgspec.Struct, frozen=True, kw_only=True, tag="raced"):
    """One contest of all contenders at one shape; the control is a second copy of the standard."""

    key: str
    subject: str
    shape: str
    threads: int
    times: tuple[Timed, ...]
    control: Timed
    dropped: dict[str, str] = {}
    """Contenders that died or hung in the race, with the reason."""
    rounds: int
    disturbed_rounds: int
    seconds: float = 0.0

    @property
    def entered(self) -> frozenset[str]:
        """Who took part, until the end or not."""
        return frozenset({*(timed.peer for timed in self.times), *self.dropped})


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A step that gave nothing, and why."""

    key: str
    message: str
    final: bool = False
    """Whether trying again is of no use."""
    seconds: float = 0.0


Record = Made | Scored | Raced | Failure


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All records, with what they were measured on."""

    schema: int = 1
    date: str
    host: str
    isa: tuple[str, ...]
    versions: dict[str, str]
    threads: int
    seed: int
    rounds: int
    records: dict[str, Record] = {}

    def with_record(self, record: Record) -> Run:
        """The run with this record, in place of an older one of the same step."""
        return msgspec.structs.replace(self, records={**self.records, record.key: record})

    def made(self, key: str) -> Artifact | None:
        """The artifact of a step that succeeded."""
        record = self.records.get(key)
        return record.artifact if isinstance(record, Made) else None


def read_run(path: Path) -> Run:
    """Read what ``write_run`` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def write_run(run: Run, path: Path) -> None:
    """Replace the file as a whole: an interruption leaves the older one."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    new.replace(path)
