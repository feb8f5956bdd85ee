"""Grafts: the variant with one block of the standard, for what no detector knows. Time and points of each block."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from unlag.errors import UnlagError
from unlag.measure.accuracy import score
from unlag.measure.bench import Bench, quick
from unlag.measure.compare import STANDARD, VARIANT, Compared
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.graph import read_model, save_model, sweep
from unlag.model.variant import Variant
from unlag.observe.evidence import BlockFacts
from unlag.proof.capacity import contenders_at_once
from unlag.rewrites.graft_block import graft_block

ROUNDS = 3


class Graft(msgspec.Struct, frozen=True):
    """What the variant wins when one block is the standard's; or why that could not be measured."""

    block: str
    won_ms: Interval | None
    won_points: Interval | None
    reason: str = ""


def graft_blocks(
    bench: Bench, compared: Compared, blocks: Sequence[BlockFacts], *, time: bool = True, points: bool = True
) -> tuple[Graft, ...]:
    """Build a hybrid for each block and measure its time, its accuracy or both, in batches that fit into memory."""
    with tempfile.TemporaryDirectory(prefix="unlag-") as name:
        hybrids: dict[str, Variant] = {}
        reasons: dict[str, str] = {}
        for place, block in enumerate(blocks):
            bench.progress(f"building grafts: {block.name}", 0.0)
            try:
                hybrids[block.name] = make_hybrid(bench.case, blocks, place, Path(name) / f"graft{place}.onnx")
            except UnlagError as error:
                reasons[block.name] = error.message
        for unusable in _unusable(bench, hybrids, reasons):
            del hybrids[unusable]
        times = _time(bench.within(0.0, 0.6), compared, hybrids) if time else {}
        gains = _points(bench.within(0.6, 1.0), compared, hybrids) if points else {}
    return tuple(
        Graft(block.name, times.get(block.name), gains.get(block.name), reasons.get(block.name, "")) for block in blocks
    )


def make_hybrid(case: Case, blocks: Sequence[BlockFacts], place: int, path: Path) -> Variant:
    """The variant with the block at ``place`` taken from the standard, written to ``path``.

    Raises:
        UsageError: the two models don't fit together at the block's borders.
    """
    host, donor = read_model(Path(case.variant.path)), read_model(Path(case.standard.path))
    before = blocks[place - 1] if place else None
    begin = None if before is None else (before.variant_border, before.standard_border)
    graft_block(host, donor, begin, (blocks[place].variant_border, blocks[place].standard_border))
    sweep(host)
    save_model(host, path)
    return case.variant.at(path)


def _time(bench: Bench, compared: Compared, hybrids: Mapping[str, Variant]) -> dict[str, Interval]:
    """Milliseconds that each hybrid wins over the variant, in the same rounds."""
    times: dict[str, Interval] = {}
    names = list(hybrids)
    room = contenders_at_once(compared.comparison) - 1  # the variant runs in every batch
    for start in range(0, len(names), room):
        batch = names[start : start + room]
        part = bench.within(start / len(names), (start + len(batch)) / len(names))
        contenders = {VARIANT: bench.case.variant, **{name: hybrids[name] for name in batch}}
        with part.contest(contenders, quick(bench.protocol, ROUNDS)) as contest:
            result = contest.measure()
        times |= {name: result.difference_ms(VARIANT, name) for name in batch}
    return times


def _unusable(bench: Bench, hybrids: Mapping[str, Variant], reasons: dict[str, str]) -> list[str]:
    """Hybrids that the runtime does not take; one of them must not end the contest of all."""
    failed = []
    for name, hybrid in hybrids.items():
        try:
            with bench.contest({name: hybrid}) as contest:
                contest.answers(name, [bench.workload.feed])
        except UnlagError as error:
            reasons[name] = error.message
            failed.append(name)
    return failed


def _points(bench: Bench, compared: Compared, hybrids: Mapping[str, Variant]) -> dict[str, Interval]:
    """Points that each hybrid wins over the variant; nothing without labels."""
    evaluation = bench.workload.evaluation
    if evaluation is None or not compared.scores:
        return {}
    points = {}
    for place, (name, hybrid) in enumerate(hybrids.items()):
        bench.progress(f"accuracy of the grafts: {name}", place / len(hybrids))
        with bench.contest({name: hybrid}) as contest:
            scored = score(contest, name, evaluation, compared.scores[STANDARD].rows)
        points[name] = scored.change_from(compared.scores[VARIANT], bench.case.seed)
    return points
