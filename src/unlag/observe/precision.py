"""The precision map: in which element types weights are stored and operators compute, on both sides. Pure."""

from __future__ import annotations

from unlag.errors import Missing
from unlag.observe.borders import WEIGHTY_BYTES
from unlag.observe.evidence import Side


def weight_bytes_by_precision(side: Side) -> dict[str, int]:
    """Bytes of the weights in the side's file, by element type; empty without a graph."""
    totals: dict[str, int] = {}
    if isinstance(side.graph, Missing):
        return totals
    for constant in side.graph.constants.values():
        if constant.size_bytes >= WEIGHTY_BYTES:
            totals[constant.dtype] = totals.get(constant.dtype, 0) + constant.size_bytes
    return totals


def times_by_precision(side: Side) -> dict[str, float]:
    """Milliseconds of one run by the element type that operators compute in; empty without a profile."""
    totals: dict[str, float] = {}
    if isinstance(side.profile, Missing):
        return totals
    for operator in side.profile.operators:
        totals[operator.precision] = totals.get(operator.precision, 0.0) + operator.time_ms
    return totals
