"""What a fix has measured so far, kept on disk, so that one that was interrupted goes on from there."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import TypeVar

import msgspec

_T = TypeVar("_T")


class Journal:
    """Results of steps by name. A step is known by everything that it depends on, so that a stale one is never found.

    A journal that can't be written costs a resumed run its time, and nothing else.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Keep steps in ``folder``; in none, where nothing is to be kept."""
        self._folder = folder

    def read(self, kind: type[_T], *step: object) -> _T | None:
        """What the step came to in an earlier run."""
        if self._folder is None:
            return None
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.msgpack.decode(self._place(step).read_bytes(), type=kind)
        return None

    def write(self, value: object, *step: object) -> None:
        """Keep what the step came to; a file is there whole or not at all."""
        if self._folder is None:
            return
        place = self._place(step)
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_suffix(".part")
            part.write_bytes(msgspec.msgpack.encode(value))
            part.replace(place)

    @property
    def steps(self) -> int:
        """How many steps are known."""
        return 0 if self._folder is None else len(list(self._folder.glob("*.step")))

    def drop(self) -> None:
        """Forget everything: it is finished, or is to begin anew."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _place(self, step: tuple[object, ...]) -> Path:
        digest = hashlib.sha256(msgspec.msgpack.encode(step)).hexdigest()[:24]
        assert self._folder is not None  # noqa: S101 - both callers have looked
        return self._folder / f"{digest}.step"
