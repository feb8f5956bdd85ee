"""Saved evidence may have been cut or edited: what no measurement gives is refused, by the field's name. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from unlag.measure.comparison import Latency
from unlag.measure.statistics import Interval
from unlag.model.facts import GraphFacts
from unlag.observe.evidence import Claim, EvidenceRecord

_ABOVE_ZERO = frozenset({"latency_ms", "run_ms", "median", "runs", "rounds"})
"""Numbers that something would be divided by, or that count what was done at least once."""
_RATIOS = frozenset({"slowdown", "noise"})
_UNITS = ("_ms", "_ns", "_s", "_bytes", "_rounds")
"""Names that end so hold times, sizes and counts: never below zero, unless they are intervals of differences."""


def find_fault(record: EvidenceRecord) -> str:
    """The first field that can't be true, and what is wrong with it; empty where all may be."""
    parts = ((record.comparison, "comparison"), (record.evidence, "evidence"))
    return next((fault for part, name in parts for fault in _faults(part, name)), "")


def _faults(value: object, path: str) -> Iterator[str]:
    if isinstance(value, GraphFacts):
        yield from _graph_faults(value, path)
    elif isinstance(value, msgspec.Struct):
        yield from _own_faults(value, path)
        for name in value.__struct_fields__:
            held = getattr(value, name)
            yield from _number_faults(held, name, f"{path}.{name}")
            yield from _faults(held, f"{path}.{name}")
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _faults(held, f"{path}.{key}")
    elif isinstance(value, tuple) and not isinstance(next(iter(value), 0), (int, float, str)):
        for position, held in enumerate(value):
            yield from _faults(held, f"{path}[{position}]")


def _own_faults(value: msgspec.Struct, path: str) -> Iterator[str]:
    if isinstance(value, (Interval, Latency)) and value.low > value.high:
        yield f"{path}.low is {value.low:g}, above its high of {value.high:g}"
    if isinstance(value, Claim):
        times = (("standard_ms", value.standard_ms), ("variant_ms", value.variant_ms))
        yield from (
            f"{path}.{name} is {ms:g}; it must be above zero" for name, ms in times if ms is not None and ms <= 0
        )


def _number_faults(held: object, name: str, path: str) -> Iterator[str]:
    if isinstance(held, Interval) and name in _RATIOS and not held.estimate > 0:
        yield f"{path}.estimate is {held.estimate:g}; a ratio of times is above zero"
    if name == "times_ns" and isinstance(held, tuple) and (not held or min(held) <= 0):
        yield f"{path} {f'holds {min(held)}' if held else 'is empty'}; times are above zero"
    if isinstance(held, bool) or not isinstance(held, (int, float)):
        return
    if name in _ABOVE_ZERO and not held > 0:
        yield f"{path} is {held:g}; it must be above zero"
    elif name.endswith(_UNITS) and held < 0:
        yield f"{path} is {held:g}; it can't be below zero"


def _graph_faults(facts: GraphFacts, path: str) -> Iterator[str]:
    """Tensors that nothing makes: of the main graph only, for bodies have inputs that facts don't list."""
    made = {name for node in facts.nodes for name in node.outputs} | set(facts.constants) | set(facts.listed_inputs)
    made |= {info.name for info in facts.inputs}
    for node in facts.nodes:
        absent = next((name for name in node.inputs if name and name not in made), None)
        if absent is not None and not node.depth:
            yield f"{path}.nodes: {node.name or node.op_type} reads {absent!r}, which no node makes"
    for info in facts.outputs:
        if info.name not in made:
            yield f"{path}.nodes: no node makes the output {info.name!r}"
