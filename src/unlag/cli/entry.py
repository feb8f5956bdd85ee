"""The entry point: every way in which a run can end, as one line and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence

import typer

from unlag.cli import screen
from unlag.cli.commands import app
from unlag.cli.jobs import Job
from unlag.cli.signals import Stopped, stopping_cleanly
from unlag.errors import UnlagError

WRONG_USAGE, OUR_FAULT = 2, 4

_OUTSIDE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE})
"""Failures of the machine that no code of ours could have avoided."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without "×" must not end a measurement
    debug = "--debug" in words
    try:
        with stopping_cleanly():
            job = _parse(words)
            return job if isinstance(job, int) else job()
    except KeyboardInterrupt as stop:
        screen.complain("stopped", _how_to_go_on(words))
        return stop.exit_code if isinstance(stop, Stopped) else 130
    except typer.TyperException as error:
        screen.complain(error.format_message().rstrip("."), _where_to_look(error))
        return WRONG_USAGE
    except UnlagError as error:
        return _named(error, debug=debug)
    except MemoryError:
        return _named(UnlagError("out of memory"), debug=debug, code=WRONG_USAGE)
    except Exception as error:  # noqa: BLE001 - the last place that can turn a fault of ours into a line
        return _unexpected(error, debug=debug)


def _parse(words: list[str]) -> Job | int:
    """The job that the words ask for, or the exit code where parsing has done it all (--help)."""
    result: Job | int = app(words or ["--help"], prog_name="unlag", standalone_mode=False)
    if not words:
        return WRONG_USAGE
    return result


def _how_to_go_on(words: list[str]) -> str:
    """Only a fix keeps what it has measured."""
    command = next((word for word in words if not word.startswith("-")), "")
    return "the same command with --resume goes on from what was measured" if command == "fix" else ""


def _where_to_look(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"see {context.command_path} --help" if context is not None else "see unlag --help"


def _named(error: UnlagError, *, debug: bool, code: int | None = None) -> int:
    if debug:
        screen.show_traceback()
    code = error.exit_code if code is None else code
    if code == OUR_FAULT:
        return _our_fault(error.message, debug=debug)
    screen.complain(error.message, error.hint)
    return code


def _unexpected(error: Exception, *, debug: bool) -> int:
    if debug:
        screen.show_traceback()
    if isinstance(error, OSError) and error.errno in _OUTSIDE_ERRORS:
        where = f": {error.filename}" if error.filename else ""
        screen.complain(f"{error.strerror}{where}")
        return WRONG_USAGE
    lines = str(error).strip().splitlines()
    detail = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return _our_fault(detail, debug=debug)


def _our_fault(detail: str, *, debug: bool) -> int:
    again = "report it with the traceback above" if debug else "run again with --debug and report it"
    screen.complain(f"{detail}: this is a fault of unlag; {again}")
    return OUR_FAULT
