"""The normal form that every runtime delivers, and what a runtime file must offer.

A runtime is one file in this folder with one ``RUNTIME``; it is found by its file name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, cast

import msgspec

from unlag.errors import Missing, UsageError
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Signature

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
        """Write the graph that really runs, in ONNX form, into ``folder``. Called in a worker."""
        ...

    def placement(self, profile: Profile, variant: Variant) -> Placement:
        """Providers of the profiled nodes, beside what the variant asked for."""
        ...


_NO_RUNTIMES = frozenset({"contract", "nvidia", "bound_session", "qualcomm"})
"""Files of this folder that are parts of a runtime."""


def runtime_names() -> tuple[str, ...]:
    """Names of the runtimes that have a file here."""
    folder = Path(__file__).parent
    return tuple(sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if m.name not in _NO_RUNTIMES))


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
