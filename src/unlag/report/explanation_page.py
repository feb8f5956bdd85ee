"""What an explanation says: where the milliseconds and the points go, cause by cause, and what is left over."""

from __future__ import annotations

from unlag.measure.comparison import Verdict
from unlag.measure.statistics import Interval
from unlag.proof.explain import leaves_points, leaves_time
from unlag.proof.explanation import CauseReport, Explanation, Knot
from unlag.report import numbers
from unlag.report.claim_section import claim_section
from unlag.report.comparison_page import headline, names, warnings_section
from unlag.report.document import Column, Line, Page, Row, Section, Table, Tone, known_columns
from unlag.report.inside_sections import (
    attention_lines,
    block_sections,
    kind_sections,
    nonfinite_lines,
    weight_lines,
)
from unlag.report.next_steps import next_section

_TONES: dict[str, Tone] = {"suspected": "unsure", "ruled_out": "quiet", "failed": "unsure", "not_checked": "quiet"}
_SHOWN_STATUS = {"proven": "proven", "suspected": "suspected", "ruled_out": "ruled out", "failed": "failed"}


def explanation_page(explanation: Explanation, *, full: bool) -> Page:
    """The whole report; ``full`` forms show the operators' times even where nothing is left unexplained."""
    comparison = explanation.comparison
    sections = [
        Section(headline(comparison, advice=not explanation.replayed), picture="verdict"),
        *cause_sections(explanation, full=full),
        *warnings_section((*comparison.warnings, *explanation.warnings)),
        *next_section(explanation),
    ]
    title = "Why {} lags behind {}" if comparison.verdict.lags else "{} against {}"
    return Page(title.format(*names(comparison)), tuple(sections))


def cause_sections(explanation: Explanation, *, full: bool) -> list[Section]:
    """Speed, accuracy, what was ruled out, and the operators; without proofs, what is suspected."""
    claimed = [] if explanation.claim is None else [claim_section(explanation.claim)]
    return [
        *(_suspected(explanation) if explanation.quick else _measured(explanation)),
        *_looked_for(explanation),
        *claimed,
        *_inside(explanation, full=full),
    ]


def _suspected(explanation: Explanation) -> list[Section]:
    """What a diagnosis finds, with what it may cost and no numbers: nothing of it was measured."""
    verdict = explanation.comparison.verdict
    inside = (*attention_lines(explanation), *nonfinite_lines(explanation)) if _loses_accuracy(explanation) else ()
    found = [cause for cause in explanation.causes if cause.status == "suspected"]
    if not found:
        said = "No cause was found." if verdict.lags else "No cause of lag was found."
        return [Section((Line(said), *inside))]
    columns = (Column(""), Column("", wordy=True), Column("", wordy=True), Column("may cost"))
    rows = tuple(
        Row((str(number), cause.title, cause.reason, _costs(cause))) for number, cause in enumerate(found, start=1)
    )
    title = "Suspected, not measured" if verdict.lags else "Suspected, though no lag was measured"
    return [Section((Table(columns, rows), *inside), title=title)]


def _costs(cause: CauseReport) -> str:
    words = {"speed": "time", "accuracy": "accuracy"}
    return ", ".join(words[affected] for affected in cause.affects)


def _measured(explanation: Explanation) -> list[Section]:
    numbering = _numbering(explanation)
    return [*_speed(explanation, numbering), *_accuracy(explanation, numbering)]


def speed_causes(explanation: Explanation) -> list[CauseReport]:
    """Causes that cost time, and suspected ones that may."""
    return [
        cause
        for cause in explanation.causes
        if cause.status in {"proven", "suspected"}
        and (cause.cost_ms is not None or cause.first_in_ms is not None or cause.accuracy_cost is None)
        and cause.affects != ("accuracy",)
    ]


def accuracy_causes(explanation: Explanation) -> list[CauseReport]:
    """Causes that cost accuracy, and suspected ones that can cost nothing else."""
    shown = {"proven", "suspected"}
    return [
        cause
        for cause in explanation.causes
        if cause.status in shown and (cause.accuracy_cost is not None or cause.affects == ("accuracy",))
    ]


def _numbering(explanation: Explanation) -> dict[str, int]:
    """A number for each shown cause, the same one where it costs both time and points."""
    order = [cause.id for cause in (*speed_causes(explanation), *accuracy_causes(explanation))]
    return {cause: position for position, cause in enumerate(dict.fromkeys(order), start=1)}


def _speed(explanation: Explanation, numbering: dict[str, int]) -> list[Section]:
    causes = speed_causes(explanation)
    reconciliation = explanation.reconciliation
    if reconciliation is None:
        return [Section((Line("No cause was measured, so nothing of the difference in time is explained."),))]
    verdict, gap_ms = explanation.comparison.verdict, reconciliation.gap_ms.estimate
    too_small = [cause for cause in explanation.causes if cause.status == "ruled_out" and cause.first_in_ms is not None]
    title = _speed_title(verdict, reconciliation.gap_ms)
    if not causes and not too_small:
        unknown = Line("No cause was found: all of it is unexplained.")
        return [Section((unknown,), title=title)] if verdict.speed == "slower" else []
    rows = [_speed_row(cause, str(numbering[cause.id]), gap_ms) for cause in causes]
    _add_knots(rows, causes, explanation.knots, numbering)
    rows += [_speed_row(cause, "", gap_ms) for cause in too_small]
    table = known_columns(
        Table(
            (
                Column(""),
                Column("", wordy=True),
                Column("", wordy=True),
                Column("removing it wins", numeric=True),
                Column("left in alone", numeric=True),
                Column("share", numeric=True),
                Column(""),
            ),
            tuple(rows),
        ),
        numbers.UNKNOWN,
    )
    rest = (
        f"interaction {numbers.milliseconds(reconciliation.interaction_ms.estimate, gap_ms)}"
        f" · unexplained {numbers.milliseconds_of(reconciliation.unexplained_ms, gap_ms)}"
    )
    measured = any(cause.cost_ms is not None or cause.first_in_ms is not None for cause in (*causes, *too_small))
    return [Section((table, *([Line(rest)] if measured else [])), title=title, picture="causes" if measured else None)]


def _speed_title(verdict: Verdict, gap: Interval) -> str:
    amount = numbers.milliseconds(abs(gap.estimate))
    if verdict.speed == "slower" and gap.estimate > 0:
        return f"Where the {amount} go"
    if verdict.speed == "faster" and gap.estimate < 0:
        return f"What costs time, though the variant is {amount} ahead"
    known = "do not differ" if verdict.speed == "same" else "may not differ"
    return f"What was tried, though the times {known}"


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


def _loses_accuracy(explanation: Explanation) -> bool:
    return explanation.comparison.verdict.accuracy == "worse" or explanation.first_nonfinite is not None


def _accuracy(explanation: Explanation, numbering: dict[str, int]) -> list[Section]:
    causes = accuracy_causes(explanation)
    reconciliation = explanation.accuracy_reconciliation
    inside = [*attention_lines(explanation), *nonfinite_lines(explanation)]
    if reconciliation is None and not causes:
        return [Section(tuple(inside))] if inside and _loses_accuracy(explanation) else []
    columns = (
        Column(""),
        Column("", wordy=True),
        Column("", wordy=True),
        Column("removing it wins", numeric=True),
        Column("share", numeric=True),
        Column(""),
    )
    rows = tuple(_accuracy_row(cause, str(numbering[cause.id])) for cause in causes)
    elements: list[Table | Line] = [known_columns(Table(columns, rows), numbers.UNKNOWN)] if rows else []
    title = "What costs accuracy" if explanation.comparison.verdict.accuracy != "not_measured" else "May cost accuracy"
    if reconciliation is not None:
        loss = reconciliation.loss.estimate
        title = f"Where the {numbers.number(loss, 1)} points go" if loss > 0 else title
        interaction = numbers.number(reconciliation.interaction.estimate, 1)
        elements.append(
            Line(f"interaction {interaction} points · unexplained {numbers.points_of(reconciliation.unexplained)}")
        )
    return [Section((*elements, *inside), title=title, picture="losses")]


def _accuracy_row(cause: CauseReport, number: str) -> Row:
    cells = (
        number,
        cause.title,
        cause.reason,
        numbers.points_of(cause.accuracy_cost),
        numbers.percent(cause.share_of_loss),
        _SHOWN_STATUS[cause.status],
    )
    return Row(cells, _TONES.get(cause.status, "plain"))


def _looked_for(explanation: Explanation) -> list[Section]:
    """Every other cause by its id: ruled out, not checked (by reason), or failed."""
    ruled_out = [cause.id for cause in explanation.causes if cause.status == "ruled_out"]
    unchecked: dict[str, list[str]] = {}
    for cause in explanation.causes:
        if cause.status == "not_checked":
            unchecked.setdefault(cause.reason, []).append(cause.id)
    lines = [Line(f"Ruled out ({len(ruled_out)}): {', '.join(ruled_out)}", tone="quiet")] if ruled_out else []
    lines += [Line(f"Not checked: {', '.join(ids)} · {reason}", tone="quiet") for reason, ids in unchecked.items()]
    lines += [
        Line(f"failed: {cause.title}: {cause.reason}", tone="unsure")
        for cause in explanation.causes
        if cause.status == "failed"
    ]
    if ruled_out or unchecked:
        lines.append(Line("unlag causes ID tells what each one is", tone="quiet"))
    return [Section(tuple(lines))] if lines else []


def _inside(explanation: Explanation, *, full: bool) -> list[Section]:
    """Tables that locate a lag where much of it is left over and nothing is suspected, or a full form has room."""
    suspected = explanation.quick and any(cause.status == "suspected" for cause in explanation.causes)
    time, points = (leaves(explanation) and not suspected for leaves in (leaves_time, leaves_points))
    grafted = any(block.graft_ms or block.graft_reason for block in explanation.blocks)
    weights = weight_lines(explanation)
    return [
        *([Section(tuple(weights))] if weights else []),
        *(block_sections(explanation) if full or grafted or time or points else []),
        *(kind_sections(explanation) if full or time else []),
    ]
