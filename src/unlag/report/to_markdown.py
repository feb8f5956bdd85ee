"""A page as Markdown, for pull requests and issues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from unlag.report.document import Command, Line, Page, Row, Section, Table, clean
from unlag.report.pages import page_of
from unlag.report.record import Record

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#&$])")
_STARTS = re.compile(r"^([-+=]|\d+[.)])(?=\s)")
"""What would begin a list, a rule or a heading at the start of a line."""


def render(record: Record, *, beside_article: bool = False) -> str:
    """The record's report in GitHub's Markdown."""
    return page_in_markdown(page_of(record, full=True, beside_article=beside_article))


def page_in_markdown(page: Page) -> str:
    """Any page in GitHub's Markdown."""
    blocks = [f"# {escape(page.title)}"]
    for section in page.sections:
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no table cell ended early."""
    return _STARTS.sub(r"\\\1", _SPECIAL.sub(r"\\\1", clean(text)).strip())


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield f"## {escape(section.title)}"
    lines: list[Line] = []
    for element in section.elements:
        if isinstance(element, Line):
            lines.append(element)
            continue
        yield from _paragraph(lines)
        lines = []
        yield _command(element) if isinstance(element, Command) else _table(element)
    yield from _paragraph(lines)


def _paragraph(lines: Sequence[Line]) -> Iterator[str]:
    if lines:
        yield "  \n".join(_line(line) for line in lines)


def _line(line: Line) -> str:
    text = escape(line.text)
    if line.strong:
        text = f"**{text}**"
    return f"{text} ({escape(line.aside)})" if line.aside else text


def _command(command: Command) -> str:
    text = clean(command.text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{escape(command.label)}:\n\n{fence}\n{text}\n{fence}"


def _table(table: Table) -> str:
    head = [column.title for column in table.columns]
    rule = ["---:" if column.numeric else ":---" for column in table.columns]
    lines = [_cells(head), "| " + " | ".join(rule) + " |", *(_cells(row.cells) for row in table.rows)]
    return "\n\n".join(["\n".join(lines), *_notes(table.rows)])


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield from (escape(note) for note in row.note.splitlines())
