"""How long work tells its watcher what is going on."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Gets told what is being done now, and how much of that is done (0 to 1; nothing while unknown)."""

    def __call__(self, what: str, share: float | None = None) -> None:
        """Take notice."""
        ...


def silent(what: str, share: float | None = None) -> None:
    """A watcher that doesn't look."""
    del what, share
