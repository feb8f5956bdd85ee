"""A page for the terminal, and for pipes and logs: rich renderables, no markup, nothing ever cut off.

Where a table doesn't fit, its rows become short blocks of ``title: value`` lines.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from unlag.report.document import Column, Command, Line, Page, Row, Section, Table, clean
from unlag.report.pages import page_of
from unlag.report.record import Record

_T = TypeVar("_T")

_STYLES = {"plain": "", "good": "green", "bad": "red", "unsure": "yellow", "quiet": "dim"}
_GAP = 2
_INDENT = 2
_NARROWEST_WORDS = 18
"""A wordy column below this breaks sentences into confetti."""


def render(record: Record, *, beside_article: bool = False) -> TextPage:
    """The record's report for rich's console."""
    return TextPage(page_of(record, full=False, beside_article=beside_article))


class TextPage:
    """A page that fits itself to the console's width."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Section after section, a blank line between."""
        for position, section in enumerate(self._page.sections):
            if position:
                yield Text("")
            yield from _section(section, options.max_width)


class TextLines:
    """Some lines without a page around them."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, their asides one below the other."""
        yield from _lines(self._lines, options.max_width)


def plain_text(renderable: TextPage | TextLines, width: int) -> str:
    """The text for pipes and files: no styles, no blanks at the ends of lines."""
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, markup=False, emoji=False, highlight=False
    )
    console.print(renderable)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def _section(section: Section, width: int) -> Iterator[ConsoleRenderable]:
    elements = section.elements
    if section.title and isinstance(elements[0], Table):
        yield from _table(elements[0], width, section.title)
        elements = elements[1:]
    elif section.title:
        yield _title(section.title)
    waiting: list[Line] = []
    for element in elements:
        if isinstance(element, Line):
            waiting.append(element)
            continue
        yield from _lines(waiting, width)
        waiting = []
        yield from _command(element) if isinstance(element, Command) else _table(element, width)
    indented = section.title and any(not isinstance(element, Line) for element in section.elements)
    yield from _lines(waiting, width, indent=5 if indented else 0)


def _command(command: Command) -> Iterator[ConsoleRenderable]:
    yield Text.assemble(f"{clean(command.label)}:  ", (clean(command.text), "bold"), overflow="fold")


def _lines(lines: Sequence[Line], width: int, indent: int = 0) -> Iterator[ConsoleRenderable]:
    """Asides stand in one column where all fit, else each below its sentence."""
    longest = max((cell_len(clean(line.text)) for line in lines if line.aside), default=0)
    fits = all(longest + 5 + cell_len(clean(line.aside)) <= width for line in lines)
    for line in lines:
        text = Text(" " * indent + clean(line.text), style=_style(line), overflow="fold")
        if not line.aside:
            yield _hanging(text, line.text, indent)
        elif fits:
            text.pad_right(longest + indent - text.cell_len)
            yield text.append(f"   ({clean(line.aside)})", style="not bold default")
        else:
            yield text
            yield Padding(Text(f"({clean(line.aside)})", overflow="fold"), (0, 0, 0, 4))


def _hanging(text: Text, raw: str, indent: int) -> ConsoleRenderable:
    """A line that starts with spaces keeps that indent where it wraps."""
    spaces = indent + len(raw) - len(raw.lstrip(" "))
    if not spaces:
        return text
    return Padding(Text(text.plain.lstrip(" "), style=text.style, overflow="fold"), (0, 0, 0, spaces))


def _style(line: Line) -> str:
    return f"{'bold ' if line.strong else ''}{_STYLES[line.tone]}".strip()


def _title(title: str) -> Text:
    return Text(clean(title), style="bold", overflow="fold")


def _table(table: Table, width: int, title: str = "") -> Iterator[ConsoleRenderable]:
    widths = _widths(table, width - _INDENT)
    if widths is None and sum(column.wordy for column in table.columns) > 1:
        table = _narrowed(table)
        widths = _widths(table, width - _INDENT)
    if widths is None:
        if title:
            yield _title(title)
        yield from _stacked(table, width)
        return
    yield from _head(table.columns, widths, title)
    for row in table.rows:
        yield _grid(table.columns, row, widths)
        for note in row.note.splitlines():
            yield Padding(Text(clean(note), overflow="fold"), (0, 0, 0, 5))


def _narrowed(table: Table) -> Table:
    """The same table with its last wordy column moved into the rows' notes."""
    last = max(i for i, column in enumerate(table.columns) if column.wordy)
    rows = [
        replace(row, cells=_without(row.cells, last), note="\n".join(filter(None, (row.cells[last], row.note))))
        for row in table.rows
    ]
    return Table(_without(table.columns, last), tuple(rows))


def _without(items: tuple[_T, ...], position: int) -> tuple[_T, ...]:
    return items[:position] + items[position + 1 :]


def _head(columns: Sequence[Column], widths: Sequence[int], title: str) -> Iterator[ConsoleRenderable]:
    """The table's title and its column titles, on one line where the first titled column leaves room."""
    cells = [_aligned(column, width) for column, width in zip(columns, widths, strict=True)]
    heads = " " * _INDENT + (" " * _GAP).join(cells)
    titled = heads.strip()
    free = len(heads) - len(heads.lstrip())
    if title and titled and cell_len(clean(title)) + _GAP <= free:
        rest = heads[cell_len(clean(title)) :]
        yield Text.assemble((clean(title), "bold"), (rest, "dim"), no_wrap=True, overflow="fold")
        return
    if title:
        yield _title(title)
    if titled:
        yield Text(heads, style="dim", no_wrap=True, overflow="fold")


def _aligned(column: Column, width: int) -> str:
    title = clean(column.title)
    return title.rjust(width) if column.numeric else title.ljust(width)


def _widths(table: Table, width: int) -> list[int] | None:
    """Each column's width, or nothing if even narrow words leave too little room for the numbers."""
    rows = [tuple(column.title for column in table.columns), *(row.cells for row in table.rows)]
    natural = [max(cell_len(clean(row[i])) for row in rows) for i in range(len(table.columns))]
    wordy = [i for i, column in enumerate(table.columns) if column.wordy]
    room = width - _GAP * (len(natural) - 1) - sum(n for i, n in enumerate(natural) if i not in wordy)
    wanted = sum(natural[i] for i in wordy)
    if room >= wanted:
        return natural
    least = [max(min(natural[i], _NARROWEST_WORDS), cell_len(clean(table.columns[i].title))) for i in wordy]
    if room < sum(least):
        return None
    for position, i in enumerate(wordy):
        later = sum(least[position + 1 :])
        share = room - later if position == len(wordy) - 1 else room * natural[i] // wanted
        wanted -= natural[i]
        natural[i] = min(natural[i], max(least[position], min(share, room - later)))
        room -= natural[i]
    return natural


def _grid(columns: Sequence[Column], row: Row, widths: Sequence[int]) -> ConsoleRenderable:
    grid = Grid.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(
            justify="right" if column.numeric else "left", width=width, no_wrap=not column.wordy, overflow="fold"
        )
    style = _STYLES[row.tone]
    grid.add_row(*(Text(clean(cell), style=style) for cell in row.cells))
    return Padding(grid, (0, 0, 0, _INDENT))


def _stacked(table: Table, width: int) -> Iterator[ConsoleRenderable]:
    """Each row as a block: words first, then its numbers with their titles, as many on a line as fit."""
    indent = 2 * _INDENT + 1
    for row in table.rows:
        named = list(zip(table.columns, row.cells, strict=True))
        heading = " · ".join(cell for column, cell in named if cell and not column.numeric)
        yield Padding(Text(clean(heading), style=_STYLES[row.tone], overflow="fold"), (0, 0, 0, _INDENT))
        facts = [clean(f"{column.title} {cell}").strip() for column, cell in named if cell and column.numeric]
        for line in (*_packed(facts, width - indent), *map(clean, row.note.splitlines())):
            yield Padding(Text(line, overflow="fold"), (0, 0, 0, indent))


def _packed(facts: Sequence[str], width: int) -> list[str]:
    """Facts joined to lines, none broken unless it is wider than a line."""
    lines: list[str] = []
    for fact in facts:
        if lines and cell_len(lines[-1]) + 3 + cell_len(fact) <= width:
            lines[-1] = f"{lines[-1]} · {fact}"
        else:
            lines.append(fact)
    return lines
