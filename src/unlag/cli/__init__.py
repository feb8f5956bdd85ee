"""The command line: arguments in, report out, exit code. The only place that prints or catches UnlagError."""

from __future__ import annotations

from unlag.cli.entry import main

__all__ = ["main"]
