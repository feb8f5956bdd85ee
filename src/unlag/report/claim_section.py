"""The user's own times: what was claimed, what other ways of measuring give, and what follows."""

from __future__ import annotations

from unlag.proof.claim_report import ClaimReport, ClaimTrial, SkippedTrial
from unlag.report import numbers
from unlag.report.document import Column, Element, Line, Row, Section, Table

SHOWN = 6
"""Ways that do not give the claimed times and are shown even so, nearest first."""


def claim_section(report: ClaimReport) -> Section:
    """The conclusion, and a table of the nearest ways of measuring where the claim doesn't agree."""
    title = "Your own times"
    conclusion = Line(report.conclusion, tone="good" if report.agrees else "unsure", strong=not report.agrees)
    if report.agrees:
        return Section((conclusion,), title=title)
    best = report.best
    others = [trial for trial in report.trials if not trial.reproduces]
    rows = [
        _row("claimed", report.claim.standard_ms, report.claim.variant_ms, "", ""),
        _row("measured", *_measured(report), "", ""),
        *(_trial_row(trial) for trial in (*best, *others[:SHOWN])),
    ]
    columns = (
        Column("", wordy=True),
        Column("standard", numeric=True),
        Column("variant", numeric=True),
        Column("ratio", numeric=True),
        Column("off by", numeric=True),
        Column(""),
    )
    elements: list[Element] = [conclusion, Table(columns, tuple(rows))]
    left = len(others) - SHOWN
    if left > 0:
        elements.append(Line(f"{left} more ways of measuring were tried and are further off.", tone="quiet"))
    elements += [_skipped_line(trial) for trial in report.skipped]
    return Section(tuple(elements), title=title)


def _measured(report: ClaimReport) -> tuple[float | None, float | None]:
    claim = report.claim
    return (
        None if claim.standard_ms is None else report.standard_ms.estimate,
        None if claim.variant_ms is None else report.variant_ms.estimate,
    )


def _trial_row(trial: ClaimTrial) -> Row:
    off = f"{numbers.number(100 * (trial.off_by - 1), 0)} %" if trial.off_by < 2 else numbers.factor(trial.off_by)
    row = _row(trial.title, trial.standard_ms, trial.variant_ms, off, "gives it" if trial.reproduces else "")
    return row if trial.reproduces else Row(row.cells, "quiet")


def _row(title: str, standard_ms: float | None, variant_ms: float | None, off: str, verdict: str) -> Row:
    ratio = None if standard_ms is None or variant_ms is None else variant_ms / standard_ms
    times = tuple(numbers.UNKNOWN if time is None else numbers.milliseconds(time) for time in (standard_ms, variant_ms))
    return Row((title, *times, numbers.UNKNOWN if ratio is None else numbers.factor(ratio), off, verdict))


def _skipped_line(trial: SkippedTrial) -> Line:
    return Line(f"not tried: {trial.title}", aside=trial.reason, tone="quiet")
