"""Read one file of ``/proc`` or ``/sys``: its text, or the reason why there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from unlag.errors import Missing


class Sources(msgspec.Struct, frozen=True):
    """Where the facts of a machine are read from; tests point it at a made-up tree.

    Only with ``platform == "linux"`` are files read; elsewhere psutil is asked.
    """

    platform: str = sys.platform
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    root: Path = Path("/")

    @property
    def is_linux(self) -> bool:
        """Whether the file trees are there to be read."""
        return self.platform == "linux"

    @property
    def cpus(self) -> Path:
        """The folder with one folder a logical core."""
        return self.sys / "devices/system/cpu"


def read_text(path: Path, why: str = "") -> str | Missing:
    """The stripped text of a file; ``why`` explains an absence where the caller knows the usual cause."""
    explanation = f": {why}" if why else ""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return Missing(f"{path} does not exist{explanation}")
    except PermissionError:
        return Missing(f"{path} may not be read by this user{explanation}")
    except OSError as error:
        return Missing(f"{path} can't be read ({error.strerror or error}){explanation}")


def read_int(path: Path, why: str = "") -> int | Missing:
    """The one integer that a file holds."""
    text = read_text(path, why)
    if isinstance(text, Missing):
        return text
    try:
        return int(text)
    except ValueError:
        return Missing(f"{path} holds {text[:40]!r}, not a number")


def parse_core_list(text: str) -> tuple[int, ...]:
    """Read the kernel's ``0-2,5`` into ``(0, 1, 2, 5)``.

    Raises:
        ValueError: the text is not such a list.
    """
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def parse_fields(text: str, separator: str = ":") -> dict[str, str]:
    """Read ``key: value`` lines; a key that comes again keeps its first value."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, found, value = line.partition(separator)
        if found:
            fields.setdefault(key.strip(), value.strip())
    return fields
