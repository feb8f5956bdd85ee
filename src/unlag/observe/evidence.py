"""What diagnosis is made from: facts of both sides in one normal form. JSON-able, so that it can be replayed."""

from __future__ import annotations

import msgspec

from unlag.errors import Missing
from unlag.measure.host import Host
from unlag.measure.statistics import Interval
from unlag.model.graph import GraphFacts
from unlag.model.variant import Variant
from unlag.runtimes.contract import Placement, Profile


class Side(msgspec.Struct, frozen=True):
    """One variant as seen from outside: its file, the graph that really runs, and its operators' times."""

    variant: Variant
    graph: GraphFacts | Missing
    executed: GraphFacts | Missing
    profile: Profile | Missing
    """Scaled so that its operators add up to the unprofiled time."""
    placement: Placement | Missing
    latency_ms: float


class WeightSource(msgspec.Struct, frozen=True):
    """Where the standard keeps the values of one of the variant's weights.

    The variant's [in, out] matrix equals ``standard[:, start:stop]``, up to quantization.
    """

    name: str
    start: int
    stop: int


class Evidence(msgspec.Struct, frozen=True):
    """Both sides, the machine, and how far apart the two are."""

    host: Host
    standard: Side
    variant: Side
    gap_ms: Interval
    accuracy_change: Interval | None
    """Points, variant minus standard; nothing without a labelled workload."""
    weights: dict[str, WeightSource]
    """The variant's weight tensors (by the name that the matrix multiplication reads) in the standard."""
