"""The files that --json, --html and --markdown name: checked before the measuring, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unlag.errors import UsageError

if TYPE_CHECKING:
    from unlag.report.record import Record


@dataclass(frozen=True)
class Outputs:
    """Where the report goes besides the terminal."""

    json: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    evidence: Path | None = None
    """Written as soon as it is there, not with the reports."""

    def check(self, inputs: Sequence[str] = ()) -> None:
        """Make sure that all files can be written, and that none of them is an input.

        Raises:
            UsageError: one can't.
        """
        taken = {Path(name).resolve(): f"it is the input {name}" for name in inputs}
        for path in filter(None, (self.evidence, self.json, self.html, self.markdown)):
            if str(path) == "-":
                raise UsageError("'-' is no file name here", hint="write to /dev/stdout instead")
            real = path.resolve()
            if real in taken:
                raise UsageError(f"can't write {path}: {taken[real]}")
            if not _is_device(real):
                taken[real] = "another file of this run goes there"
            check_writable(path)

    def write(self, record: Record, *, beside_article: bool = False) -> None:
        """Write the record in each of the forms that were asked for.

        Raises:
            UsageError: a file can't be written; it is then as it was before.
        """
        if self.json:
            from unlag.report.record import to_json

            write_whole(self.json, to_json(record))
        if self.markdown:
            from unlag.report import to_markdown

            write_whole(self.markdown, to_markdown.render(record, beside_article=beside_article).encode())
        if self.html:
            from unlag.report import to_html

            write_whole(self.html, to_html.render(record, beside_article=beside_article).encode())


def check_writable(path: Path) -> None:
    """Make sure that a file can be made or replaced here.

    Raises:
        UsageError: it can't; with the reason.
    """
    real = path.resolve()
    if real.is_dir():
        raise UsageError(f"can't write {path}: it is a folder")
    if _is_device(real):
        return
    if not real.parent.is_dir():
        raise UsageError(f"can't write {path}: there is no folder {path.parent}")
    with _reporting(path):
        if real.exists():
            os.close(os.open(real, os.O_WRONLY))
        tempfile.TemporaryFile(dir=real.parent).close()


def check_folder(folder: Path, *, mark: str | None = None) -> None:
    """Make sure that a folder can be made or filled; with ``mark``, that it is new, empty or holds that file.

    Raises:
        UsageError: it can't, or it holds something else.
    """
    real = folder.resolve()
    if real.exists() and not real.is_dir():
        raise UsageError(f"can't write into {folder}: it is a file")
    existing = next(parent for parent in (real, *real.parents) if parent.exists())
    if not existing.is_dir():
        raise UsageError(f"can't make {folder}: {existing} is a file")
    with _reporting(folder):
        tempfile.TemporaryFile(dir=existing).close()
        if mark and existing == real and not (real / mark).exists() and any(real.iterdir()):
            raise UsageError(f"{folder} is not empty and was not made by unlag", hint="name a new folder")


def write_whole(path: Path, content: bytes) -> None:
    """Put the content in the file's place at once; devices and pipes are written directly.

    Raises:
        UsageError: the disk is full, or the place can't be written.
    """
    real = path.resolve()
    with _reporting(path):
        if _is_device(real):
            real.write_bytes(content)
            return
        mode = real.stat().st_mode & 0o777 if real.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(prefix=f".{real.name[:100]}.", dir=real.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(mode)
            Path(name).replace(real)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _is_device(real: Path) -> bool:
    return real.exists() and not real.is_file() and not real.is_dir()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        return
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error
