"""The normal form that every runtime delivers, and what a runtime file must offer.

A runtime is one file or folder here with one ``RUNTIME``; it is found by that name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

import msgspec

from unlag.errors import Missing, UsageError
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Signature

if TYPE_CHECKING:  # workers read this file too, and need no graph library
    from unlag.model.draft import Draft, Observed
    from unlag.model.facts import GraphFacts

Kind = Literal[
    "gemm",
    "attention",
    "normalization",
    "activation",
    "elementwise",
    "layout",
    "cast",
    "quantize",
    "dequantize",
    "copy",
    "control",
    "other",
]


class Operator(msgspec.Struct, frozen=True):
    """One executed operator, in the same words for every runtime."""

    name: str
    op_type: str
    kind: Kind
    precision: str
    """Element type it computes in: ``float32``, ``float16``, ``int8`` ..."""
    time_ms: float
    """Mean time of one run, without that of the operators in its body."""
    kernel: str
    """The provider, and the kernel where the runtime names it."""
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    moved_bytes: int = 0
    """Bytes of its inputs and outputs."""


class Profile(msgspec.Struct, frozen=True, tag=True):
    """Operators of a profiled run, in execution order; ``run_ms`` is the mean wall time of a profiled run."""

    operators: tuple[Operator, ...]
    run_ms: float
    runs: int


class Placement(msgspec.Struct, frozen=True, tag=True):
    """Which execution provider runs how many nodes, and which of the asked-for ones fell back."""

    nodes: dict[str, int]
    requested: str


class Option(msgspec.Struct, frozen=True):
    """One option of a runtime's spec, for help and for messages."""

    name: str
    values: str
    meaning: str


class Inspection(msgspec.Struct, frozen=True):
    """What can be told of a variant without opening it in its runtime."""

    signature: Signature
    limits: dict[str, int]
    """Exclusive upper bound of integer inputs that index a table."""
    size_bytes: int
    """On disk, external data included."""


class Exposed(msgspec.Struct, frozen=True):
    """A copy of a variant that gives out the tensors inside it, none of which its runtime fuses away."""

    variant: Variant
    tensors: tuple[str, ...]
    """Names as in ``read_graph``, in the order in which they are computed."""


Recipe = Callable[[Variant, Sequence[Feed], Path], Variant]
"""Makes another model of a float one, with runs to calibrate on, and writes it to a path (with the suffix of its own
format). Raises UsageError where it can't."""


class Session(Protocol):
    """An opened model. Lives in the worker's process only."""

    signature: Signature

    def run(self, feed: Feed, outputs: Sequence[str] | None = None) -> Mapping[str, Array]:
        """Run once; the outputs asked for (all, where none are named) by name, in the model's or the given order."""
        ...

    def run_only(self, feed: Feed) -> None:
        """Run once for timing, with the least work around the runtime's own call."""
        ...


class Runtime(Protocol):
    """A runtime that can open, profile and describe variants."""

    name: str
    options: tuple[Option, ...]

    def missing(self) -> Missing | None:
        """Why this runtime can't be used here, or nothing."""
        ...

    def check(self, variant: Variant) -> None:
        """Raise UsageError for an unknown option, a bad value, or a provider that is not available."""
        ...

    def takes(self, path: Path) -> bool:
        """Whether it can open files of that format, by the name alone."""
        ...

    def recipes(self) -> Mapping[str, Recipe]:
        """Smaller or faster models that the runtime's own tools make, by name. Called in the parent."""
        ...

    def settings(self, threads: int) -> Mapping[str, Mapping[str, str]]:
        """Options whose worth depends on the machine, by the name of the setting; of a search with ``threads``."""
        ...

    def files(self, variant: Variant) -> tuple[Path, ...]:
        """All files that the model is made of, its own first. Raises UsageError as ``inspect`` does."""
        ...

    def inspect(self, variant: Variant) -> Inspection:
        """Look at the file. Raises UsageError when it can't be read. Called in the parent, so it stays light."""
        ...

    def open(self, variant: Variant, threads: int) -> Session:
        """Open the model with ``threads`` unless its options say otherwise. Called in a worker."""
        ...

    def profile(self, variant: Variant, threads: int, feed: Feed, runs: int) -> Profile:
        """Profile ``runs`` runs after one of warm-up. Called in a worker."""
        ...

    def executed_graph(self, variant: Variant, threads: int, folder: Path) -> Path | Missing:
        """Write the graph that really runs into ``folder``, for ``read_executed``. Called in a worker."""
        ...

    def read_executed(self, path: Path) -> GraphFacts | Missing:
        """What ``executed_graph`` wrote. Called in the parent."""
        ...

    def read_graph(self, variant: Variant) -> GraphFacts | Missing:
        """Facts of the graph in the variant's file; an operator that ONNX has too goes by ONNX's name.

        Called in the parent.
        """
        ...

    def expose(self, variant: Variant, folder: Path) -> Exposed:
        """Write a copy into ``folder`` whose inner tensors can be asked for. Called in the parent.

        Raises:
            UsageError: the runtime has no way to do that, or can't read the model.
        """
        ...

    def open_draft(self, variant: Variant, standard: Variant, observed: Observed | None = None) -> Draft:
        """Read the variant so that it can be changed. Called in the parent.

        Raises:
            UsageError: one of the two can't be read.
        """
        ...

    def placement(self, profile: Profile, variant: Variant) -> Placement:
        """Providers of the profiled nodes, beside what the variant asked for."""
        ...


def runtime_names() -> tuple[str, ...]:
    """Names of the runtimes that have a file or folder here."""
    folder = Path(__file__).parent
    return tuple(sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if m.name != "contract"))


def find_runtime(name: str) -> Runtime:
    """The runtime of that name.

    Raises:
        UsageError: no such runtime, or it can't be used here (with the reason).
    """
    if name not in runtime_names():
        raise UsageError(f"there is no runtime {name!r}", hint=f"runtimes: {', '.join(runtime_names())}")
    runtime = cast("Runtime", importlib.import_module(f"unlag.runtimes.{name}").RUNTIME)
    missing = runtime.missing()
    if missing is not None:
        raise UsageError(f"runtime {name} can't be used here: {missing.reason}")
    return runtime
