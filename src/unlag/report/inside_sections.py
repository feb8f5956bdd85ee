"""What an explanation knows of the inside of both networks: blocks, kinds of operators, precisions, attention."""

from __future__ import annotations

from statistics import mean

from unlag.proof.explanation import Explanation
from unlag.report import numbers
from unlag.report.document import Column, Line, Row, Section, Table, known_columns


def block_sections(explanation: Explanation) -> list[Section]:
    """Blocks of the network with their times and errors, and what grafting them won."""
    if not explanation.blocks:
        return []
    blocks = explanation.blocks
    times = [ms for block in blocks for ms in (block.standard_ms, block.variant_ms) if ms is not None]
    like = max(times, default=1.0)
    rows = tuple(
        Row(
            (
                block.name,
                _ms(block.standard_ms, like),
                _ms(block.variant_ms, like),
                _share(block.error),
                numbers.milliseconds_of(block.graft_ms, like),
                numbers.points_of(block.graft_points),
            ),
            note=f"not grafted: {block.graft_reason}" if block.graft_reason else "",
        )
        for block in blocks
    )
    titles = ("standard", "variant", "error", "the standard's wins", "points")
    columns = (Column("", wordy=True), *(Column(title, numeric=True) for title in titles))
    table = known_columns(Table(columns, rows), numbers.UNKNOWN)
    asides = ["time from a profiled run"] if times else []
    asides.append("error: of the tensor that the block ends with, relative to the standard's")
    lines = [Line(" · ".join(asides), tone="quiet")]
    lines += [Line(reason, tone="quiet") for reason in explanation.untimed_blocks]
    return [Section((table, *lines), title="Block by block")]


def weight_lines(explanation: Explanation) -> list[Line]:
    """That integer weights are nothing but smaller files, where it is so."""
    return [Line(explanation.folded_weights, tone="unsure")] if explanation.folded_weights else []


def kind_sections(explanation: Explanation) -> list[Section]:
    """Time by kind of operator with its share of the roofline, and by precision with the weights' bytes."""
    return [*_kinds(explanation), *_precisions(explanation)]


def _kinds(explanation: Explanation) -> list[Section]:
    if not explanation.kinds:
        return []
    like = max(max(kind.standard_ms, kind.variant_ms) for kind in explanation.kinds)
    titles = ("standard", "variant", "difference", "of the roofline", "and the variant's")
    rows = tuple(
        Row(
            (
                kind.name,
                numbers.milliseconds(kind.standard_ms, like),
                numbers.milliseconds(kind.variant_ms, like),
                numbers.milliseconds(kind.variant_ms - kind.standard_ms, like),
                _roofline(kind.standard_roofline),
                _roofline(kind.variant_roofline),
            )
        )
        for kind in explanation.kinds
    )
    columns = (Column("", wordy=True), *(Column(title, numeric=True) for title in titles))
    shares = [share for kind in explanation.kinds for share in (kind.standard_roofline, kind.variant_roofline) if share]
    note = "roofline: the time that float32 products and memory at this machine's best would take, over the real time"
    lines = [Line(note, tone="quiet")] if shares else []
    if any(_is_above(share) for share in shares):
        lines.append(Line("above 100 %: computed in fewer bits than float32, or on tensors in caches", tone="quiet"))
    if any(kind.name == "control" for kind in explanation.kinds):
        lines.append(Line("control: If, Loop and Scan without what runs in their bodies", tone="quiet"))
    table = known_columns(Table(columns, rows), numbers.UNKNOWN)
    return [Section((table, *lines), title="Time by kind of operator, from a profiled run")]


def _roofline(share: float | None) -> str:
    """How much more than 100 % says nothing: the ceiling is not that of such operators."""
    return "> 100 %" if share is not None and _is_above(share) else _share(share)


def _is_above(share: float) -> bool:
    return round(100 * share) > 100


def _precisions(explanation: Explanation) -> list[Section]:
    if not explanation.precisions:
        return []
    like = max(max(row.standard_ms, row.variant_ms) for row in explanation.precisions) or 1.0
    titles = ("standard computes", "variant computes", "standard's weights", "variant's weights")
    rows = tuple(
        Row(
            (
                row.name,
                numbers.milliseconds(row.standard_ms, like),
                numbers.milliseconds(row.variant_ms, like),
                numbers.size(row.standard_weight_bytes),
                numbers.size(row.variant_weight_bytes),
            )
        )
        for row in explanation.precisions
    )
    columns = (Column("", wordy=True), *(Column(title, numeric=True) for title in titles))
    return [Section((Table(columns, rows),), title="By precision")]


def attention_lines(explanation: Explanation) -> list[Line]:
    """How far attention is off in all blocks, where it is visibly so."""
    facts = explanation.attention
    if not facts:
        return []
    ours, theirs = mean(f.standard_entropy for f in facts), mean(f.variant_entropy for f in facts)
    errors = [f.logit_error for f in facts if f.logit_error is not None]
    known = f" · scores off by {numbers.percent(mean(errors))}" if errors else ""
    count = f"{len(facts)} attention blocks" if len(facts) > 1 else "1 attention block"
    return [Line(f"{count}: entropy of a row {theirs:.2f} nats, the standard {ours:.2f}{known}")]


def nonfinite_lines(explanation: Explanation) -> list[Line]:
    """The first tensor with NaN or infinity that only the variant has."""
    first = explanation.first_nonfinite
    if first is None:
        return []
    made = f", made by {first.op_type}" if first.op_type else ""
    elements = "1 element" if first.elements == 1 else f"{first.elements} elements"
    return [Line(f"first tensor with NaN or infinity: {first.tensor}{made}, in {elements}", tone="unsure")]


def _ms(value: float | None, like: float) -> str:
    return numbers.UNKNOWN if value is None else numbers.milliseconds(value, like)


def _share(value: float | None) -> str:
    if value is None:
        return numbers.UNKNOWN
    return numbers.percent(value) if value >= 0.01 or value == 0 else f"{100 * value:.1g} %"
