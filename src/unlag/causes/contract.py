"""What a cause is: a detector over evidence, and the remedies that prove it by taking it away.

A cause is one file with one ``CAUSE``; its id is the file's name. Those of ONNX Runtime are in this folder, those of
another runtime in the folder of its name. Its module docstring is the
documentation that ``unlag causes ID`` prints.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from unlag.errors import Missing
from unlag.model.draft import Draft
from unlag.model.variant import DEFAULT_RUNTIME
from unlag.observe.evidence import Evidence

Dimension = Literal["quantization", "graph", "hardware", "parallel", "measurement"]
Status = Literal["found", "ruled_out", "not_checked", "failed"]
Safety = Literal["EXACT", "CLOSE", "ADVICE"]
Affects = Literal["speed", "accuracy"]
Need = Literal["graph", "executed", "profile", "standard_graph", "standard_executed", "accuracy"]


class Step(IntEnum):
    """When a remedy works, among several on one copy: later steps see what earlier ones made."""

    REQUANTIZE = 0
    """Change the codes or scales of stored weights."""
    WIDEN = 1
    """Take weights or activations back to float32."""
    INLINE = 2
    """Take nodes out of branches and loops, where no other remedy sees them."""
    CLEAN = 3
    """Take out copies, casts, transposes."""
    RESTORE = 4
    """Bring back a function that was lost."""
    FUSE = 5
    """Replace several nodes by one."""
    JOIN = 6
    """Join fused operators with their neighbors, or give them another form."""
    SESSION = 7
    """Change how the runtime runs the graph."""


D = TypeVar("D", bound=Draft)


@dataclass(frozen=True)
class Remedy(Generic[D]):
    """A change that takes a cause away. ``apply`` edits the draft and says in how many places (0: nothing to do).

    EXACT keeps the outputs up to rounding, CLOSE may change them a little or restores what was lost,
    ADVICE is for the reader and never applied.
    """

    id: str
    title: str
    safety: Safety
    step: Step
    apply: Callable[[D], int]
    fixes_shape: bool = False
    """The repaired model takes inputs of the measured shape only, so that it can't run a data set."""


class Finding(msgspec.Struct, frozen=True):
    """A detector's answer. ``reason`` is a sentence with a number in it; ``where`` names the nodes."""

    status: Status
    reason: str
    where: tuple[str, ...] = ()
    remedy: str | None = None
    """The remedy that fits, where the first one doesn't."""


@dataclass(frozen=True)
class Cause:
    """``detect`` is pure; it may rely on the evidence that ``needs`` names being there."""

    id: str
    title: str
    dimension: Dimension
    affects: frozenset[Affects]
    needs: frozenset[Need]
    detect: Callable[[Evidence], Finding]
    remedies: tuple[Remedy[Any], ...]
    knots: Mapping[str, str] = field(default_factory=dict)
    """Why this cause's cost depends on another's, by the other's id: half a sentence for the report."""
    runtimes: frozenset[str] = frozenset({DEFAULT_RUNTIME})
    """Where it can happen; its remedies take the drafts of these runtimes."""

    def concerns(self, evidence: Evidence) -> bool:
        """Whether both sides run where this can happen."""
        return {evidence.standard.variant.runtime, evidence.variant.variant.runtime} <= self.runtimes


def find_causes() -> tuple[Cause, ...]:
    """All causes, by file name. A file that can't be imported is an error, never skipped."""
    found = pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}.")
    names = [module.name for module in found if not module.ispkg and module.name != __name__]
    names.sort(key=lambda name: name.rpartition(".")[2])
    return tuple(cast("Cause", importlib.import_module(name).CAUSE) for name in names)


def diagnose(evidence: Evidence, cause: Cause) -> Finding:
    """Ask one cause. Missing evidence is NOT_CHECKED, an exception in the detector is FAILED; both with the reason."""
    for need in sorted(cause.needs):
        absent = _absent(evidence, need)
        if absent is not None:
            return Finding("not_checked", absent)
    try:
        return cause.detect(evidence)
    except Exception as error:  # noqa: BLE001 - one detector's fault must not take the others' answers away
        return Finding("failed", f"the detector raised {type(error).__name__}: {error}")


def _absent(evidence: Evidence, need: Need) -> str | None:
    if need == "accuracy":
        return "accuracy was not measured: the workload has no labels" if evidence.accuracy_change is None else None
    part = {
        "graph": evidence.variant.graph,
        "executed": evidence.variant.executed,
        "profile": evidence.variant.profile,
        "standard_graph": evidence.standard.graph,
        "standard_executed": evidence.standard.executed,
    }[need]
    return part.reason if isinstance(part, Missing) else None
