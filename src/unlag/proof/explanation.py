"""The explanation: causes with their proofs, adding up to the gap, in the JSON that scripts rely on."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.causes.contract import Affects, Dimension, Safety
from unlag.measure.comparison import Comparison
from unlag.measure.statistics import Interval
from unlag.observe.evidence import AttentionFacts
from unlag.proof.claim_report import ClaimReport

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
    affects: tuple[Affects, ...] = ()
    """What it can cost; nothing in records of an earlier version."""


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
    """A part of the network between two borders that both sides have."""

    name: str
    standard_ms: float | None
    """Profiled; nothing without a profile."""
    variant_ms: float | None
    error: float | None = None
    """Relative error of the tensor that it ends with."""
    graft_ms: Interval | None = None
    """What the variant wins when this block is the standard's."""
    graft_points: Interval | None = None
    graft_reason: str = ""
    """Why it could not be grafted."""


class KindTime(msgspec.Struct, frozen=True):
    """Profiled time of one kind of operator on both sides, and its share of the machine's roofline."""

    name: str
    standard_ms: float
    variant_ms: float
    standard_roofline: float | None = None
    variant_roofline: float | None = None


class PrecisionTime(msgspec.Struct, frozen=True):
    """Weights stored in one element type, and the time of operators that compute in it, on both sides."""

    name: str
    standard_weight_bytes: int
    variant_weight_bytes: int
    standard_ms: float
    variant_ms: float


class Nonfinite(msgspec.Struct, frozen=True):
    """The variant's first tensor with NaN or infinite elements that the standard doesn't have."""

    tensor: str
    op_type: str
    elements: int


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
    untimed_blocks: tuple[str, ...] = ()
    """Why a side's time could not be split by block, a sentence for each such side."""
    kinds: tuple[KindTime, ...] = ()
    precisions: tuple[PrecisionTime, ...] = ()
    folded_weights: str = ""
    """A sentence, where the variant's integer weights are floats by the time it runs."""
    attention: tuple[AttentionFacts, ...] = ()
    first_nonfinite: Nonfinite | None = None
    claim: ClaimReport | None = None
    quick: bool = False
    """Nothing was proven, because nobody wanted to wait for it or there was nothing to measure with."""
    replayed: bool = False
    """Diagnosed from saved evidence."""
    warnings: tuple[str, ...] = ()
