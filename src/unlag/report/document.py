"""A report before it has a form: sections of lines and tables, which each renderer writes in its own way.

Texts are raw here: names of models and nodes come from files of strangers. Renderers escape for their own form,
after ``clean`` has made control characters visible.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from typing import Literal

Tone = Literal["plain", "good", "bad", "unsure", "quiet"]

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that move the cursor, change colors, reorder text or can't be encoded."""


@dataclass(frozen=True)
class Line:
    """A sentence; ``aside`` are its numbers, in parentheses behind it."""

    text: str
    aside: str = ""
    tone: Tone = "plain"
    strong: bool = False


@dataclass(frozen=True)
class Column:
    """A table's column. Numbers stand right and are never broken; wordy columns share what width is left."""

    title: str
    numeric: bool = False
    wordy: bool = False


@dataclass(frozen=True)
class Row:
    """One row; ``note`` runs below it over the whole width."""

    cells: tuple[str, ...]
    tone: Tone = "plain"
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under column titles. An empty title in ``columns`` leaves the heading blank."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def known_columns(table: Table, unknown: str) -> Table:
    """The table without columns of numbers that hold nothing but the sign for what is not known."""
    kept = [
        place
        for place, column in enumerate(table.columns)
        if not column.numeric or any(row.cells[place] != unknown for row in table.rows)
    ]
    rows = tuple(replace(row, cells=tuple(row.cells[place] for place in kept)) for row in table.rows)
    return Table(tuple(table.columns[place] for place in kept), rows)


@dataclass(frozen=True)
class Command:
    """What to type next, ready to be copied."""

    label: str
    text: str


Element = Line | Table | Command

Picture = Literal["verdict", "rounds", "causes", "losses", "stages"]


@dataclass(frozen=True)
class Section:
    """Elements that belong together, at least one; ``picture`` names the chart that a graphical form adds."""

    elements: tuple[Element, ...]
    title: str = ""
    picture: Picture | None = None


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    sections: tuple[Section, ...]


def clean(text: str) -> str:
    r"""The text with every control, format and surrogate character written out, such as ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) if unicodedata.category(char) in _INVISIBLE else char for char in text)


def _visible(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
