"""The fix: stages with what was kept and rejected, in the JSON that scripts rely on."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.measure.comparison import Accuracy, Comparison
from unlag.measure.statistics import Interval
from unlag.proof.explanation import Explanation

StageName = Literal["baseline", "quantization", "graph", "hardware"]


class Rejected(msgspec.Struct, frozen=True):
    """A remedy that was tried and not kept, and why, with numbers."""

    remedy: str
    reason: str


class Kept(msgspec.Struct, frozen=True):
    """A remedy that was kept, and what that was measured to be worth."""

    remedy: str
    reason: str


class Decision(msgspec.Struct, frozen=True):
    """What one stage's search came to."""

    kept: tuple[Kept, ...]
    rejected: tuple[Rejected, ...]


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the staged table; all rows are timed in one contest at the end."""

    name: StageName
    latency_ms: Interval
    speedup_over_baseline: Interval
    slowdown_to_standard: Interval
    accuracy: Accuracy | None
    accuracy_change: Interval | None
    """Points, to the standard."""
    size_bytes: int
    kept: tuple[Kept, ...]
    rejected: tuple[Rejected, ...]


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """The staged way from the variant to the best model for this machine."""

    schema: int = 1
    kind: Literal["fix"] = "fix"
    explanation: Explanation
    stages: tuple[StageResult, ...]
    npu: None = None
    """Filled by ``--target npu``."""
    output: str
    """The folder that ``unlag.load`` opens."""
    result: Comparison
    """The standard against the fixed model, in a contest of its own."""
    standard_latency_ms: Interval
    standard_accuracy: Accuracy | None
    standard_size_bytes: int
    notes: tuple[str, ...] = ()
