"""The explanation: causes with their proofs, adding up to the gap, in the JSON that scripts rely on."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.causes.contract import Dimension, Safety
from unlag.measure.comparison import Comparison
from unlag.measure.statistics import Interval

CauseStatus = Literal["proven", "suspected", "ruled_out", "not_checked", "failed"]


class RemedyNote(msgspec.Struct, frozen=True):
    """The remedy that proved a cause."""

    id: str
    title: str
    safety: Safety


class CauseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one cause. ``cost_ms`` is its Shapley share of what the repair wins."""

    id: str
    title: str
    dimension: Dimension
    status: CauseStatus
    reason: str
    where: tuple[str, ...] = ()
    remedy: RemedyNote | None = None
    cost_ms: Interval | None = None
    first_in_ms: Interval | None = None
    """What removing it alone wins, from the variant as it is."""
    last_out_ms: Interval | None = None
    """What it costs when it alone is left in the repaired model."""
    share_of_gap: float | None = None
    accuracy_cost: Interval | None = None
    """Points that removing it brings back; above zero, it costs accuracy."""
    share_of_loss: float | None = None


class Reconciliation(msgspec.Struct, frozen=True):
    """gap = explained + interaction + unexplained, in milliseconds."""

    gap_ms: Interval
    explained_ms: Interval
    interaction_ms: Interval
    unexplained_ms: Interval


class AccuracyReconciliation(msgspec.Struct, frozen=True):
    """loss = explained + interaction + unexplained, in points."""

    loss: Interval
    explained: Interval
    interaction: Interval
    unexplained: Interval


class Knot(msgspec.Struct, frozen=True):
    """Causes whose costs depend on each other, and the sentence that says how."""

    causes: tuple[str, ...]
    sentence: str


class Block(msgspec.Struct, frozen=True):
    """Profiled time of one kind of operator on both sides (blocks of the network come from alignment)."""

    name: str
    standard_ms: float
    variant_ms: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why the variant lags."""

    schema: int = 1
    kind: Literal["explanation"] = "explanation"
    comparison: Comparison
    causes: tuple[CauseReport, ...]
    """Proven ones first, by cost; then suspected, failed, not checked, ruled out."""
    reconciliation: Reconciliation | None
    accuracy_reconciliation: AccuracyReconciliation | None
    knots: tuple[Knot, ...]
    blocks: tuple[Block, ...]
    warnings: tuple[str, ...] = ()
