"""What a peer is: a tool that makes a model out of a standard, and what is known of the model that it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Shape

Kind = Literal["transformer", "cnn"]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A model that every peer starts from, and what is run on it."""

    name: str
    title: str
    kind: Kind
    standard: Variant
    workload: str
    shapes: tuple[Shape, ...]
    starts: dict[str, Variant] = {}
    """Other variants of the same model that ``unlag fix`` may start from, by name."""
    checkpoint: str | None = None
    """The folder that a Hugging Face library opens, where there is one."""


@dataclass(frozen=True)
class Validation:
    """Labelled runs that a tool may steer by; they are none of those that are scored in the end."""

    feeds: Sequence[Feed]
    judge: Callable[[Sequence[Array]], float]
    """From the first output of each run to points: 0 to 100, higher is better."""
    metric: str


@dataclass(frozen=True)
class Data:
    """Runs to calibrate on, and runs to validate with."""

    calibration: Sequence[Feed]
    validation: Validation


@dataclass(frozen=True)
class Job:
    """What a tool gets."""

    subject: Subject
    shape: Shape
    threads: int
    seed: int
    folder: Path
    """An empty one, for what the tool writes."""
    data: Data

    @property
    def standard(self) -> Path:
        """The file to start from."""
        return Path(self.subject.standard.path)


class Artifact(msgspec.Struct, frozen=True):
    """What a tool made: how it is opened, how large it is on disk, and what can be said of it."""

    variant: Variant
    size_bytes: int
    note: str = ""
    plain: Variant | None = None
    """The same model for all shapes, to be scored in its place: this one is compiled, or fixed, for one shape."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool with its settings. ``tool`` names the function that makes the artifact, as ``file:function``."""

    name: str
    title: str
    tool: str
    packages: tuple[str, ...]
    """Of whose versions its result depends."""
    ours: bool = False
    per_shape: bool = False
    """Whether it makes another model for each shape."""
    kinds: Mapping[Kind, str] = {}
    """Kinds of models that it is not for, each with the reason."""
    start: str = ""
    """The variant that it starts from, where that is not the standard."""
    expected_s: float = 30.0
    """Roughly how long it works, to tell the time that is left."""

    def unfit_for(self, subject: Subject) -> str:
        """Why there is nothing for it to do here; empty where there is."""
        if self.start and self.start not in subject.starts:
            return f"there is no variant {self.start!r} of this model to start from"
        return self.kinds.get(subject.kind, "")
