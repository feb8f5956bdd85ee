"""What evidence says about the inside of both networks, in the explanation's words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unlag.errors import Missing
from unlag.model.facts import GraphFacts, GraphIndex
from unlag.observe.blocks import why_untimed
from unlag.observe.borders import WEIGHTY_BYTES
from unlag.observe.evidence import Evidence
from unlag.observe.kinds import operators_by_kind, share_of_roofline, time_of
from unlag.observe.precision import times_by_precision, weight_bytes_by_precision
from unlag.proof.explanation import Block, KindTime, Nonfinite, PrecisionTime
from unlag.proof.graft import Graft

_INTEGERS = frozenset({"int8", "uint8", "int4", "uint4"})
FEW = 0.1
"""Share of the integer weights that may be left (a table that is looked up) where the others were folded."""


def blocks_of(evidence: Evidence, grafts: Sequence[Graft] = ()) -> tuple[Block, ...]:
    """Blocks in the network's order, with what grafting them won."""
    by_name = {graft.block: graft for graft in grafts}
    blocks = []
    for facts in evidence.blocks:
        graft = by_name.get(facts.name)
        blocks.append(
            Block(
                name=facts.name,
                standard_ms=facts.standard_ms,
                variant_ms=facts.variant_ms,
                error=facts.error,
                graft_ms=graft.won_ms if graft else None,
                graft_points=graft.won_points if graft else None,
                graft_reason=graft.reason if graft else "",
            )
        )
    return tuple(blocks)


def untimed_blocks(evidence: Evidence) -> tuple[str, ...]:
    """A sentence for each side whose time can't be split by block."""
    facts = evidence.blocks
    sides = (
        ("standard", evidence.standard, [block.standard_border for block in facts]),
        ("variant", evidence.variant, [block.variant_border for block in facts]),
    )
    reasons = [(name, why_untimed(side, borders)) for name, side, borders in sides]
    return tuple(f"the {name}'s time can't be split by block: {reason}" for name, reason in reasons if reason)


def folded_weights(evidence: Evidence) -> str:
    """Say it where the variant's file holds integer weights and the graph that runs has them as floats."""
    stored, run = evidence.variant.graph, evidence.variant.executed
    if isinstance(stored, Missing) or isinstance(run, Missing):
        return ""
    before, after = _integer_bytes(stored), _integer_bytes(run)
    total = sum(before.values())
    if not total or sum(after.values()) > FEW * total:
        return ""
    kinds = " and ".join(sorted(before))
    return f"the variant's {kinds} weights are dequantized when it is loaded: its products compute in floats"


def _integer_bytes(facts: GraphFacts) -> dict[str, int]:
    """Bytes of weights of 4 and 8 bits, by element type."""
    totals: dict[str, int] = {}
    for constant in facts.constants.values():
        if constant.dtype in _INTEGERS and constant.size_bytes >= WEIGHTY_BYTES:
            totals[constant.dtype] = totals.get(constant.dtype, 0) + constant.size_bytes
    return totals


def kinds_of(evidence: Evidence) -> tuple[KindTime, ...]:
    """Kinds of operators, the largest difference first."""
    standard, variant = operators_by_kind(evidence.standard), operators_by_kind(evidence.variant)
    rows = [
        KindTime(
            name=kind,
            standard_ms=time_of(standard.get(kind, [])),
            variant_ms=time_of(variant.get(kind, [])),
            standard_roofline=share_of_roofline(standard.get(kind, []), evidence.ceilings),
            variant_roofline=share_of_roofline(variant.get(kind, []), evidence.ceilings),
        )
        for kind in sorted({*standard, *variant})
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.variant_ms - row.standard_ms)))


def precisions_of(evidence: Evidence) -> tuple[PrecisionTime, ...]:
    """Element types of weights and of computing, the most time first."""
    weights = weight_bytes_by_precision(evidence.standard), weight_bytes_by_precision(evidence.variant)
    times = times_by_precision(evidence.standard), times_by_precision(evidence.variant)
    names = sorted({*weights[0], *weights[1], *times[0], *times[1]})
    rows = [
        PrecisionTime(
            name, weights[0].get(name, 0), weights[1].get(name, 0), times[0].get(name, 0.0), times[1].get(name, 0.0)
        )
        for name in names
    ]
    return tuple(sorted(rows, key=lambda row: -max(row.standard_ms, row.variant_ms)))


def first_nonfinite(evidence: Evidence) -> Nonfinite | None:
    """Where NaN or infinity comes into the variant, other than where the standard has it too."""
    ours, theirs = evidence.variant, evidence.standard
    if isinstance(ours.values, Missing) or isinstance(ours.graph, Missing):
        return None
    partners = {pair.variant: pair.standard for pair in evidence.pairs}
    known = {} if isinstance(theirs.values, Missing) else theirs.values.tensors
    index = GraphIndex(ours.graph)
    for name, facts in ours.values.tensors.items():
        partner = known.get(partners.get(name, name))
        if facts.nonfinite and not (partner and partner.nonfinite):
            maker = index.producer(name)
            return Nonfinite(name, maker.op_type if maker else "", facts.nonfinite)
    return None
