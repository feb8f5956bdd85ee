"""What ``unlag env`` shows: the machine, what of it can't be read and why, and what to change before measuring."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.measure.host import Advice, Host, advise, describe, read_host
from unlag.report.document import Column, Command, Line, Page, Row, Section, Table


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and what to change on it."""

    schema: int = 1
    kind: Literal["environment"] = "environment"
    host: Host
    advice: tuple[Advice, ...]


def read_environment() -> Environment:
    """Read this machine."""
    host = read_host()
    return Environment(host=host, advice=advise(host))


def environment_page(environment: Environment) -> Page:
    """What is known, what is not, and what to do."""
    lines = describe(environment.host)
    known = tuple(Row((label, value)) for label, value, readable in lines if readable)
    unknown = tuple(Row((label, reason), "quiet") for label, reason, readable in lines if not readable)
    columns = (Column("", wordy=True), Column("", wordy=True))
    sections = [Section((Table(columns, known),), title="This machine")]
    if unknown:
        sections.append(Section((Table(columns, unknown),), title="What can't be read here, and why"))
    sections.append(_to_change(environment.advice))
    return Page("This machine", tuple(sections))


def _to_change(advice: tuple[Advice, ...]) -> Section:
    if not advice:
        return Section((Line("Nothing to change before measuring, as far as can be read.", tone="good"),))
    elements: list[Line | Command] = []
    for item in advice:
        elements.append(Line(item.finding, tone="unsure", strong=True))
        elements.append(Line(f"  {item.why}"))
        if item.command:
            elements.append(Command("  Do", item.command))
    return Section(tuple(elements), title="To change before measuring")
