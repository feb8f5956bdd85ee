"""From a record to its page."""

from __future__ import annotations

from unlag.measure.comparison import Comparison
from unlag.proof.explanation import Explanation
from unlag.report.comparison_page import accuracy_line, comparison_page, speed_line
from unlag.report.document import Line, Page
from unlag.report.explanation_page import explanation_page
from unlag.report.fix_page import fix_page
from unlag.report.npu_page import npu_lines
from unlag.report.record import Record


def page_of(record: Record, *, full: bool, beside_article: bool = False) -> Page:
    """The page of any record. ``full`` adds details that a terminal leaves out."""
    if isinstance(record, Comparison):
        return comparison_page(record)
    if isinstance(record, Explanation):
        return explanation_page(record, full=full)
    return fix_page(record, full=full, beside_article=beside_article)


def verdict_lines(record: Record) -> tuple[Line, ...]:
    """What ``--quiet`` leaves: the verdict on each shape, for a fix on its result."""
    if not isinstance(record, (Comparison, Explanation)) and record.npu is not None:
        return npu_lines(record, record.npu)
    comparison = deciding_comparison(record)
    subject = None if isinstance(record, (Comparison, Explanation)) else "the fixed model"
    notes = () if isinstance(record, (Comparison, Explanation)) else record.notes
    lines = [*map(Line, notes), speed_line(comparison, subject), accuracy_line(comparison)]
    for other in comparison.other_shapes:
        line = speed_line(other, subject)
        lines.append(Line(f"at {other.shape}: {line.text}", line.aside, line.tone, line.strong))
    return tuple(lines)


def deciding_comparison(record: Record) -> Comparison:
    """The comparison that the exit code is about."""
    if isinstance(record, Comparison):
        return record
    if isinstance(record, Explanation):
        return record.comparison
    if record.result is None:
        raise ValueError("nothing was timed that could decide")
    return record.result
