"""Writing on standard output and standard error, which may be a terminal, a pipe, closed or full."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

from unlag.errors import UsageError
from unlag.report.document import clean

if TYPE_CHECKING:
    from unlag.report.to_text import TextLines, TextPage

PIPE_WIDTH = 120
"""Where nothing says how wide lines may be, as wide as the widest table needs."""


def show(renderable: TextPage | TextLines) -> None:
    """Print a report: with styles on a terminal, plain anywhere else.

    Raises:
        UsageError: standard output can't be written, for example because its disk is full.
    """
    from rich.console import Console

    from unlag.report.to_text import plain_text

    if sys.stdout is None:
        return
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        write(plain_text(renderable, _width()))
        return
    with console.capture() as capture:
        console.print(renderable)
    write(capture.get())


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else PIPE_WIDTH


def write(text: str) -> None:
    """Write on standard output; that a reader went away (``| head``) is no fault."""
    if sys.stdout is None:
        return
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes there at exit
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UsageError(f"can't write the report on standard output: {error.strerror}") from error


def complain(message: str, hint: str = "") -> None:
    """One line on standard error."""
    line = " ".join(message.split()) + (f" ({' '.join(hint.split())})" if hint else "")
    say(f"unlag: {line}")


def say(line: str) -> None:
    """A line on standard error, if anybody listens there."""
    try:
        print(clean(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def show_traceback() -> None:
    """The exception that is being handled, for --debug."""
    try:
        traceback.print_exc()
    except (OSError, ValueError):
        return
