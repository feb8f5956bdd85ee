"""What an explanation says: where the milliseconds and the points go, cause by cause, and what is left over."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from unlag.measure.statistics import Interval
from unlag.proof.explanation import CauseReport, Explanation, Knot
from unlag.report import numbers
from unlag.report.claim_section import claim_section
from unlag.report.comparison_page import headline, names, warnings_section
from unlag.report.document import Column, Command, Line, Page, Row, Section, Table, Tone
from unlag.report.inside_sections import attention_lines, block_sections, kind_sections, nonfinite_lines

LARGE_REST = 0.15
"""An unexplained part above this share of the gap gets the table of operators, which locates it."""

_TONES: dict[str, Tone] = {"suspected": "unsure", "ruled_out": "quiet", "failed": "unsure", "not_checked": "quiet"}
_SHOWN_STATUS = {"proven": "proven", "suspected": "suspected", "ruled_out": "ruled out", "failed": "failed"}


def explanation_page(explanation: Explanation, *, full: bool) -> Page:
    """The whole report; ``full`` forms show the operators' times even where nothing is left unexplained."""
    comparison = explanation.comparison
    sections = [
        Section((*headline(comparison), *_how_far(explanation)), picture="verdict"),
        *cause_sections(explanation, full=full),
        *warnings_section((*comparison.warnings, *explanation.warnings)),
        *_next(explanation),
    ]
    title = "Why {} lags behind {}".format(*names(comparison))
    return Page(title, tuple(sections))


def _how_far(explanation: Explanation) -> tuple[Line, ...]:
    if not explanation.quick:
        return ()
    return (Line("Nothing was proven: causes below are suspected. Without --quick each is measured.", tone="unsure"),)


def cause_sections(explanation: Explanation, *, full: bool) -> list[Section]:
    """Speed, accuracy, what was ruled out, and the operators."""
    numbering = _numbering(explanation)
    claimed = [] if explanation.claim is None else [claim_section(explanation.claim)]
    return [
        *_speed(explanation, numbering),
        *_accuracy(explanation, numbering),
        _looked_for(explanation),
        *claimed,
        *_inside(explanation, full=full),
    ]


def speed_causes(explanation: Explanation) -> list[CauseReport]:
    """Causes that cost time, and suspected ones of which nothing was measured."""
    return [
        cause
        for cause in explanation.causes
        if cause.status in {"proven", "suspected"}
        and (cause.cost_ms is not None or cause.first_in_ms is not None or cause.accuracy_cost is None)
    ]


def accuracy_causes(explanation: Explanation) -> list[CauseReport]:
    """Causes that cost accuracy."""
    shown = {"proven", "suspected"}
    return [cause for cause in explanation.causes if cause.status in shown and cause.accuracy_cost is not None]


def _numbering(explanation: Explanation) -> dict[str, int]:
    """A number for each shown cause, the same one where it costs both time and points."""
    order = [cause.id for cause in (*speed_causes(explanation), *accuracy_causes(explanation))]
    return {cause: position for position, cause in enumerate(dict.fromkeys(order), start=1)}


def _speed(explanation: Explanation, numbering: dict[str, int]) -> list[Section]:
    causes = speed_causes(explanation)
    reconciliation = explanation.reconciliation
    if reconciliation is None:
        return [Section((Line("No cause was measured, so nothing of the difference in time is explained."),))]
    gap_ms = reconciliation.gap_ms.estimate
    too_small = [cause for cause in explanation.causes if cause.status == "ruled_out" and cause.first_in_ms is not None]
    columns = (
        Column(""),
        Column("", wordy=True),
        Column("", wordy=True),
        Column("removing it wins", numeric=True),
        Column("left in alone", numeric=True),
        Column("share", numeric=True),
        Column(""),
    )
    rows = [_speed_row(cause, str(numbering[cause.id]), gap_ms) for cause in causes]
    _add_knots(rows, causes, explanation.knots, numbering)
    rows += [_speed_row(cause, "", gap_ms) for cause in too_small]
    rest = (
        f"interaction {numbers.milliseconds(reconciliation.interaction_ms.estimate, gap_ms)}"
        f" · unexplained {numbers.milliseconds_of(reconciliation.unexplained_ms, gap_ms)}"
    )
    title = _speed_title(reconciliation.gap_ms)
    table = (Table(columns, tuple(rows)),) if rows else ()
    return [Section((*table, Line(rest)), title=title, picture="causes")]


def _speed_title(gap: Interval) -> str:
    if gap.low <= 0 <= gap.high:
        return "What was tried, though the times do not differ"
    amount = numbers.milliseconds(abs(gap.estimate))
    return f"Where the {amount} go" if gap.estimate >= 0 else f"What costs time, though the variant is {amount} ahead"


def _speed_row(cause: CauseReport, number: str, gap_ms: float) -> Row:
    cells = (
        number,
        cause.title,
        cause.reason,
        numbers.milliseconds_of(cause.first_in_ms or cause.cost_ms, gap_ms),
        numbers.milliseconds_of(cause.last_out_ms, gap_ms),
        numbers.percent(cause.share_of_gap),
        _SHOWN_STATUS[cause.status],
    )
    return Row(cells, _TONES.get(cause.status, "plain"))


def _add_knots(rows: list[Row], causes: list[CauseReport], knots: tuple[Knot, ...], numbering: dict[str, int]) -> None:
    """Say a knot below the last of its causes."""
    positions = {cause.id: position for position, cause in enumerate(causes)}
    for knot in knots:
        known = [cause for cause in knot.causes if cause in positions]
        if not known:
            continue
        names = " and ".join(str(number) for number in sorted(numbering[cause] for cause in known))
        last = max(positions[cause] for cause in known)
        sentence = f"{names} knot: {knot.sentence}"
        note = f"{rows[last].note}\n{sentence}" if rows[last].note else sentence
        rows[last] = Row(rows[last].cells, rows[last].tone, note)


def _accuracy(explanation: Explanation, numbering: dict[str, int]) -> list[Section]:
    causes = accuracy_causes(explanation)
    reconciliation = explanation.accuracy_reconciliation
    inside = [*attention_lines(explanation), *nonfinite_lines(explanation)]
    if reconciliation is None and not causes:
        lost = explanation.comparison.verdict.accuracy == "worse" or explanation.first_nonfinite is not None
        return [Section(tuple(inside))] if inside and lost else []
    columns = (
        Column(""),
        Column("", wordy=True),
        Column("", wordy=True),
        Column("removing it wins", numeric=True),
        Column("share", numeric=True),
        Column(""),
    )
    rows = tuple(
        Row(
            (
                str(numbering[cause.id]),
                cause.title,
                cause.reason,
                numbers.points_of(cause.accuracy_cost),
                numbers.percent(cause.share_of_loss),
                _SHOWN_STATUS[cause.status],
            ),
            _TONES.get(cause.status, "plain"),
        )
        for cause in causes
    )
    elements: list[Table | Line] = [Table(columns, rows)] if rows else []
    title = "What costs accuracy"
    if reconciliation is not None:
        loss = reconciliation.loss.estimate
        title = f"Where the {numbers.number(loss, 1)} points go" if loss > 0 else title
        interaction = numbers.number(reconciliation.interaction.estimate, 1)
        elements.append(
            Line(f"interaction {interaction} points · unexplained {numbers.points_of(reconciliation.unexplained)}")
        )
    return [Section((*elements, *inside), title=title, picture="losses")]


def _looked_for(explanation: Explanation) -> Section:
    ruled_out = sum(cause.status == "ruled_out" for cause in explanation.causes)
    text = f"Looked for and ruled out: {_count(ruled_out, 'cause')} (unlag causes)"
    unchecked = Counter(cause.reason for cause in explanation.causes if cause.status == "not_checked")
    if unchecked:
        text += "   ·   not checked here: " + "; ".join(f"{n}, {reason}" for reason, n in unchecked.most_common())
    lines = [Line(text)]
    lines += [
        Line(f"failed: {cause.title}: {cause.reason}", tone="unsure")
        for cause in explanation.causes
        if cause.status == "failed"
    ]
    return Section(tuple(lines))


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _inside(explanation: Explanation, *, full: bool) -> list[Section]:
    """Tables that locate what is left over, or that a full form has room for."""
    grafted = any(block.graft_ms or block.graft_reason for block in explanation.blocks)
    blocks = block_sections(explanation) if full or grafted or _much_is_left(explanation) else []
    kinds = kind_sections(explanation) if full or _much_is_left(explanation) else []
    return [*blocks, *kinds]


def _much_is_left(explanation: Explanation) -> bool:
    reconciliation = explanation.reconciliation
    if reconciliation is None:
        return True
    return abs(reconciliation.unexplained_ms.estimate) > LARGE_REST * abs(reconciliation.gap_ms.estimate)


def _next(explanation: Explanation) -> list[Section]:
    comparison = explanation.comparison
    if not comparison.verdict.lags:
        return []
    words = ["unlag", "fix", comparison.standard.spec, comparison.variant.spec]
    if comparison.workload != "random":
        words += ["--workload", "FILE.npz" if comparison.workload == "npz" else comparison.workload]
    if comparison.shape != "1x128" and re.fullmatch(r"\d+x\d+", comparison.shape):
        words += ["--shapes", comparison.shape]
    return [Section((Command("Next", command([*words, "-o", "fixed/"])),))]


def command(words: Sequence[str]) -> str:
    """Words as a shell reads them back."""
    return shlex.join(words)
