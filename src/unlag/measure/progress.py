"""How long work tells its watcher what is going on."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Gets told what is being done now, and how much of all the work is done (0 to 1; nothing while unknown)."""

    def __call__(self, what: str, share: float | None = None) -> None:
        """Take notice."""
        ...


def silent(what: str, share: float | None = None) -> None:
    """A watcher that doesn't look."""
    del what, share


def section(progress: Progress, begin: float, end: float) -> Progress:
    """A watcher for a part of the work: its 0 to 1 is the whole's ``begin`` to ``end``.

    The borders are rough: they come from how long the parts took on the demo's case.
    """

    def part(what: str, share: float | None = None) -> None:
        progress(what, None if share is None else begin + (end - begin) * min(max(share, 0.0), 1.0))

    return part
