"""A runtime with scripted times and faults, so that measuring itself can be tested. It ships, for bug reports.

A "model" is a JSON file: ``{"time_ms": 5.0, "fault": {"kind": "exit", "at_run": 20}}``. It takes one input ``x``
(float32 [batch, width]) and gives ``factor · x + offset``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from unlag.errors import Missing, UsageError
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Signature, TensorInfo
from unlag.runtimes.contract import Exposed, Inspection, Operator, Option, Placement, Profile, Recipe

if TYPE_CHECKING:
    from unlag.model.draft import Draft, Observed
    from unlag.model.facts import GraphFacts


NO_GRAPH = Missing("the fake runtime has no graph")


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong, and at which run."""

    kind: Literal["raise", "exit", "hang", "nan"]
    at_run: int = 0


class Script(msgspec.Struct, frozen=True):
    """How a fake model behaves."""

    time_ms: float = 1.0
    busy: bool = False
    """Spend the time computing instead of sleeping."""
    factor: float = 1.0
    offset: float = 0.0
    fault: Fault | None = None
    input_name: str = "x"


class FakeSession:
    """Sleeps for the scripted time and scales its input."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._runs = 0
        info = TensorInfo(name=script.input_name, dtype="float32", shape=("batch", "width"))
        self.signature = Signature(inputs=(info,), outputs=(msgspec.structs.replace(info, name="y"),))

    def run(self, feed: Feed, outputs: Sequence[str] | None = None) -> Mapping[str, Array]:
        """Run once; the output is called ``y``."""
        del outputs
        broken = self._advance()
        y = np.asarray(feed[self._script.input_name], np.float32) * self._script.factor + self._script.offset
        return {"y": np.full_like(y, np.nan) if broken else y}

    def run_only(self, feed: Feed) -> None:
        """Run once for timing."""
        del feed
        self._advance()

    def _advance(self) -> bool:
        script, self._runs = self._script, self._runs + 1
        if script.busy:
            end = time.perf_counter() + script.time_ms / 1e3
            while time.perf_counter() < end:
                pass
        else:
            time.sleep(script.time_ms / 1e3)
        fault = script.fault
        if fault is None or self._runs <= fault.at_run:
            return False
        if fault.kind == "raise":
            raise RuntimeError("the scripted fault")
        if fault.kind == "exit":
            os._exit(13)
        if fault.kind == "hang":
            time.sleep(3600)
        return True


class FakeRuntime:
    """Scripted times."""

    name = "fake"
    options = (Option("threads", "1, 2, ...", "accepted and ignored"),)

    def missing(self) -> Missing | None:
        """Nothing: it is always there."""
        return None

    def check(self, variant: Variant) -> None:
        """Raise UsageError for an unknown option."""
        for name in variant.options:
            if name != "threads":
                raise UsageError(f"{variant.spec}: unknown option {name!r}", hint="options of fake: threads")

    def takes(self, path: Path) -> bool:
        """Scripts."""
        return path.suffix == ".json"

    def recipes(self) -> Mapping[str, Recipe]:
        """None."""
        return {}

    def settings(self, threads: int) -> Mapping[str, Mapping[str, str]]:
        """None."""
        del threads
        return {}

    def files(self, variant: Variant) -> tuple[Path, ...]:
        """The script."""
        return (Path(variant.path),)

    def inspect(self, variant: Variant) -> Inspection:
        """Signature and size of the script."""
        signature = self.open(variant, 1).signature
        return Inspection(signature=signature, limits={}, size_bytes=Path(variant.path).stat().st_size)

    def open(self, variant: Variant, threads: int) -> FakeSession:
        """Read the script."""
        del threads
        try:
            return FakeSession(msgspec.json.decode(Path(variant.path).read_bytes(), type=Script))
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"{variant.path} is not a script for the fake runtime: {error}") from error

    def profile(self, variant: Variant, threads: int, feed: Feed, runs: int) -> Profile:
        """One operator that takes the scripted time."""
        del threads, feed
        script = msgspec.json.decode(Path(variant.path).read_bytes(), type=Script)
        operator = Operator(
            name="scripted",
            op_type="Scripted",
            kind="other",
            precision="float32",
            time_ms=script.time_ms,
            kernel="fake",
            input_shapes=(),
            output_shapes=(),
        )
        return Profile(operators=(operator,), run_ms=script.time_ms, runs=runs)

    def executed_graph(self, variant: Variant, threads: int, folder: Path) -> Path | Missing:
        """There is none."""
        del variant, threads, folder
        return NO_GRAPH

    def read_executed(self, path: Path) -> GraphFacts | Missing:
        """There is none."""
        del path
        return NO_GRAPH

    def read_graph(self, variant: Variant) -> GraphFacts | Missing:
        """There is none."""
        del variant
        return NO_GRAPH

    def expose(self, variant: Variant, folder: Path) -> Exposed:
        """It has no inside. Raises UsageError."""
        del folder
        raise UsageError(f"{variant.spec}: the fake runtime has no tensors inside")

    def open_draft(self, variant: Variant, standard: Variant, observed: Observed | None = None) -> Draft:
        """A script can't be changed. Raises UsageError."""
        del standard, observed
        raise UsageError(f"{variant.spec}: a script for the fake runtime can't be changed")

    def placement(self, profile: Profile, variant: Variant) -> Placement:
        """Everything runs on the fake."""
        del variant
        return Placement(nodes={"fake": len(profile.operators)}, requested="fake")


RUNTIME = FakeRuntime()
