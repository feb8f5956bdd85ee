"""What diagnosis is made from: facts of both sides in one normal form. JSON-able, so that it can be replayed."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.errors import Missing
from unlag.measure.ceilings import Ceilings
from unlag.measure.comparison import Comparison
from unlag.measure.host import Host
from unlag.measure.sketch import TensorFacts
from unlag.measure.statistics import Interval
from unlag.model.draft import Observed
from unlag.model.facts import GraphFacts, GraphIndex
from unlag.model.variant import Variant
from unlag.rewrites.activation_codes import undone_quantizations
from unlag.runtimes.contract import Placement, Profile


class Values(msgspec.Struct, frozen=True, tag=True):
    """The tensors of a side's file, in the order in which the graph computes them, from a run without passes."""

    tensors: dict[str, TensorFacts]


class TensorPair(msgspec.Struct, frozen=True):
    """A tensor of the standard's file, and the one of the variant's that carries the same values."""

    standard: str
    variant: str
    correlation: float
    error: float
    """Root mean square of the difference, over that of the standard's values."""


class AttentionFacts(msgspec.Struct, frozen=True):
    """One attention block on both sides: how far its scores are off, and how sharp its rows are."""

    standard: str
    variant: str
    """Outputs of the two Softmax nodes."""
    standard_entropy: float
    """Mean entropy of a row of attention weights, in nats."""
    variant_entropy: float
    logit_error: float | None
    """Relative error of the scores that go into the Softmax; nothing where they are not paired."""


class BlockFacts(msgspec.Struct, frozen=True):
    """A part of the network between two borders that both sides have, with its profiled times and its error."""

    name: str
    standard_border: str
    """The tensor that the block ends with in the standard; empty where the graph ends."""
    variant_border: str
    standard_ms: float | None
    """Nothing without a profile."""
    variant_ms: float | None
    error: float | None
    """Relative error of the border tensor."""


class Claim(msgspec.Struct, frozen=True):
    """What the user measured, in milliseconds; nothing where only the other one was given."""

    standard_ms: float | None = None
    variant_ms: float | None = None

    @property
    def slowdown(self) -> float | None:
        """Claimed variant over claimed standard; nothing unless both were given."""
        if self.standard_ms is None or self.variant_ms is None:
            return None
        return self.variant_ms / self.standard_ms


class Side(msgspec.Struct, frozen=True):
    """One variant as seen from outside: its file, the graph that really runs, and its operators' times."""

    variant: Variant
    graph: GraphFacts | Missing
    executed: GraphFacts | Missing
    profile: Profile | Missing
    """Scaled so that its operators add up to the unprofiled time."""
    placement: Placement | Missing
    latency_ms: float
    values: Values | Missing = Missing("not run tensor by tensor")
    load_ms: float = 0.0
    first_run_ms: float = 0.0


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
    pairs: tuple[TensorPair, ...] = ()
    """Tensors of the two files that carry the same values, in the standard's order."""
    attention: tuple[AttentionFacts, ...] = ()
    blocks: tuple[BlockFacts, ...] = ()
    ceilings: Ceilings | Missing = Missing("the machine's ceilings were not measured")
    input_shapes: dict[str, tuple[int, ...]] = {}
    """Shapes of the inputs that were timed, by name."""
    threads: int = 0
    """Threads of the bench; zero where nothing was measured."""
    claim: Claim | None = None

    @property
    def observed(self) -> Observed:
        """What remedies may work from."""
        ours = _tensors(self.variant.values)
        theirs = _tensors(self.standard.values)
        pairs = [(pair.variant, theirs[pair.standard]) for pair in self.pairs if pair.standard in theirs]
        executed = self.variant.executed
        return Observed(
            input_shapes=self.input_shapes,
            ranges={name: (tensor.low, tensor.high) for name, tensor in ours.items()},
            intended={name: (tensor.low, tensor.high) for name, tensor in pairs},
            rms={name: tensor.rms for name, tensor in ours.items()},
            undone=() if isinstance(executed, Missing) else undone_quantizations(GraphIndex(executed)),
        )


def _tensors(values: Values | Missing) -> dict[str, TensorFacts]:
    return {} if isinstance(values, Missing) else values.tensors


class EvidenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence in a file, with the comparison that it belongs to: a diagnosis can be made of it without measuring."""

    schema: int = 1
    kind: Literal["evidence"] = "evidence"
    comparison: Comparison
    evidence: Evidence
