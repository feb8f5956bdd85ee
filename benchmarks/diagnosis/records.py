"""What the cases gave, in one JSON file that is whole after every case, so that a run can be gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

Job = Literal["plants", "twins", "aa", "combos"]
JOBS: tuple[Job, ...] = ("plants", "twins", "aa", "combos")

ALARM_SHARE = 0.05
"""A cause that nobody planted is a false alarm where it is said to cost more than this share of the gap."""

SMALLEST_POINTS = 0.05
"""A planted loss of accuracy below this is none, as in unlag's own verdicts."""


class Cost(msgspec.Struct, frozen=True):
    """A planted cost, measured without unlag's remedies: alone in the clean model, and last in the planted one."""

    first: float
    last: float

    @property
    def mean(self) -> float:
        """What unlag's own number is compared with."""
        return (self.first + self.last) / 2


class Noise(msgspec.Struct, frozen=True):
    """Costs that can't be told from nothing here: by the contest's noise floor, and by the number of labeled items."""

    time_ms: float
    points: float = SMALLEST_POINTS


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """A planted cause, and what unlag said of it."""

    id: str
    places: int
    status: str
    reason: str
    rank: int | None
    """Place among the proven causes, from 1; nothing where it is not proven."""
    planted_ms: Cost | None
    """Nothing where the cause does not touch speed."""
    measured_ms: float | None
    planted_points: Cost | None = None
    measured_points: float | None = None

    @property
    def proven(self) -> bool:
        """Whether it was found, and proven by measurement."""
        return self.status == "proven" and self.rank is not None

    def costs(self, noise: Noise) -> bool:
        """Whether it costs more than noise in the model that was explained."""
        slow = self.planted_ms is not None and self.planted_ms.last > noise.time_ms
        worse = self.planted_points is not None and self.planted_points.last > noise.points
        return slow or worse

    def cost_error(self, noise: Noise) -> float | None:
        """How far off the measured time is, over the planted one; nothing where either is absent."""
        if self.planted_ms is None or self.measured_ms is None:
            return None
        return abs(self.measured_ms - self.planted_ms.mean) / max(self.planted_ms.mean, noise.time_ms)


class Other(msgspec.Struct, frozen=True):
    """A cause that was proven and not planted."""

    id: str
    share: float
    """The larger one of its shares of the gap in time and of the loss of points."""
    consequence: bool
    """The plant's own file declares that it follows from it."""
    reason: str

    @property
    def alarm(self) -> bool:
        """Whether it is a false alarm."""
        return not self.consequence and self.share > ALARM_SHARE


class Explained(msgspec.Struct, frozen=True, kw_only=True, tag="explained"):
    """One model with one or more planted causes, explained."""

    key: str
    job: Job
    model: str
    planted: tuple[Planted, ...]
    speed: str
    accuracy: str
    standard_ms: float
    gap_ms: float
    noise: Noise
    unexplained_share: float | None
    """Of the gap in time; nothing where there is no gap."""
    others: tuple[Other, ...]
    suspected: tuple[str, ...]
    """Suspected causes that nobody planted."""
    cosine: float | None
    """How near the planted model's outputs are to the standard's."""
    rounds: int
    disturbed_rounds: int
    seconds: float = 0.0


class Detected(msgspec.Struct, frozen=True, kw_only=True, tag="detected"):
    """A cause that can't be planted in a real model here: only its detector was asked, on the tests' own plant."""

    key: str
    job: Job
    cause: str
    found: bool
    reason: str
    note: str
    """Why nothing was measured."""
    seconds: float = 0.0


class Alarm(msgspec.Struct, frozen=True):
    """A cause that was found in something healthy."""

    id: str
    status: str
    reason: str


class Healthy(msgspec.Struct, frozen=True, kw_only=True, tag="healthy"):
    """A healthy pair, and the causes that unlag sees in it all the same."""

    key: str
    job: Job
    alarms: tuple[Alarm, ...]
    measured: bool
    note: str = ""
    """Why it was only diagnosed."""
    seconds: float = 0.0


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A case that raised."""

    key: str
    job: Job
    message: str
    seconds: float = 0.0


Record = Explained | Detected | Healthy | Failure


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All records, with what they were measured on."""

    schema: int = 1
    host: str
    runtime: str
    seed: int
    rounds: int
    records: tuple[Record, ...] = ()

    def done(self) -> set[str]:
        """Keys of the cases that need not be run again; those that failed are tried again."""
        return {record.key for record in self.records if not isinstance(record, Failure)}

    def with_record(self, record: Record) -> Run:
        """The run with this record, in place of an older one of the same case."""
        kept = [old for old in self.records if old.key != record.key]
        return msgspec.structs.replace(self, records=(*kept, record))


def read_run(path: Path) -> Run:
    """Read what ``write_run`` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def write_run(run: Run, path: Path) -> None:
    """Replace the file as a whole: an interruption leaves the older one."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    new.replace(path)


def explained_of(records: Sequence[Record], job: Job) -> list[Explained]:
    """The explained cases of one job."""
    return [record for record in records if isinstance(record, Explained) and record.job == job]
