"""One file from the package index, as pip is told to reach it, without running anything of a package.

``pip download`` would run the build code of a source archive; the index itself (PEP 503 and 691) only lists files.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import html.parser
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from unlag.errors import UsageError

Progress = Callable[[str, int, int], None]
"""Called with what is being downloaded, bytes done and bytes in all."""

DEFAULT_INDEX = "https://pypi.org/simple"

ATTEMPTS = 5
"""How often a transfer that breaks off is taken up again."""

TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 18

_SETTING = re.compile(r"^(?:global|install|download|:env:)\.(index-url|extra-index-url|cert)=(.+)$")
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


class Archive(msgspec.Struct, frozen=True):
    """One file of the package index, pinned."""

    package: str
    version: str
    filename: str
    sha256: str
    size_bytes: int


class _WrongFileError(Exception):
    """The index serves something else under the name."""


def download(archive: Archive, part: Path, by_hand: Path, progress: Progress | None = None) -> None:
    """Bring the archive to ``part``, whole and verified, going on from what is there already.

    Raises:
        UsageError: no configured index gave the file, or ``part`` can't be written. The hint names ``by_hand``,
            the place where a user may put the file.
    """
    settings = _pip_settings()
    failures = []
    for url in [settings.get("index-url", DEFAULT_INDEX), *settings.get("extra-index-url", "").split()]:
        try:
            index = _Index(url, settings.get("cert"))
            _transfer(index, index.find(archive), archive, part, progress)
        except _WrongFileError as error:
            failures.append(f"{_host(url)} {error}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{_host(url)}: {getattr(error, 'reason', None) or error}")
        else:
            return
    raise UsageError(
        f"can't download {archive.filename}: {'; '.join(failures)}",
        hint=f"set PIP_INDEX_URL to an index that can be reached from here, or put the file at {by_hand}",
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make what goes wrong on the disk a message about the cache.

    Raises:
        UsageError: for any ``OSError``, such as a full or read-only disk.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"can't write {path}: {error.strerror or error}", hint="set UNLAG_CACHE to a folder with room"
        ) from error


def _pip_settings() -> dict[str, str]:
    """What pip's files and environment say about indexes; nothing where there is no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
        lines = done.stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        lines = []
    settings = {match[1]: str(ast.literal_eval(match[2])) for line in lines if (match := _SETTING.match(line))}
    for name in ("index-url", "extra-index-url", "cert"):
        value = os.environ.get(f"PIP_{name.replace('-', '_').upper()}")
        if value:
            settings[name] = value
    return settings


def _host(url: str) -> str:
    """The part of a URL that may be shown: never its user and password."""
    parts = urllib.parse.urlsplit(url)
    return (parts.hostname or parts.path) + (f":{parts.port}" if parts.port else "")


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


class _Index:
    """One index: how it is asked, with the user's certificates and login."""

    def __init__(self, url: str, certificates: str | None) -> None:
        self.url = url.rstrip("/")
        self.context = ssl.create_default_context(cafile=certificates)

    def open(self, url: str, **headers: str) -> Any:  # noqa: ANN401 - urllib's own untyped union
        """Open a URL. The index's user and password go to its own host only, and not along with a redirect."""
        parts, own = urllib.parse.urlsplit(url), urllib.parse.urlsplit(self.url)
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        request = urllib.request.Request(plain, headers=headers)  # noqa: S310 - any scheme that the user's pip has
        if own.username and own.hostname == parts.hostname:
            login = f"{urllib.parse.unquote(own.username)}:{urllib.parse.unquote(own.password or '')}"
            encoded = base64.b64encode(login.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {encoded}")
        return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self.context)  # noqa: S310

    def find(self, archive: Archive) -> str:
        """The URL of the archive's file, as the index lists it."""
        project = re.sub(r"[-_.]+", "-", archive.package).lower()
        page = f"{self.url}/{project}/"
        if page.startswith("file:"):
            page += "index.html"
        with self.open(page, Accept=_ACCEPT) as response:
            text = response.read().decode("utf-8")
            is_json = "json" in response.headers.get("Content-Type", "")
        for link in _json_links(text) if is_json else _html_links(text):
            url, _ = urllib.parse.urldefrag(urllib.parse.urljoin(page, link))
            if urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2]) == archive.filename:
                return url
        raise _WrongFileError(f"has no {archive.filename}")


def _json_links(text: str) -> list[str]:
    return [str(file["url"]) for file in json.loads(text)["files"]]


def _html_links(text: str) -> list[str]:
    parser = _Links()
    parser.feed(text)
    return parser.links


def _transfer(index: _Index, url: str, archive: Archive, part: Path, progress: Progress | None) -> None:
    """Transfer until the file is whole, taking it up again where it broke off."""
    failure: Exception = ConnectionError("the transfer broke off")
    for _ in range(ATTEMPTS):
        try:
            start = _receive(index, url, archive, part, progress)
        except urllib.error.URLError:  # it never began
            raise
        except (OSError, http.client.HTTPException) as error:
            failure = error
            continue
        if part.stat().st_size < archive.size_bytes:
            continue
        with part.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == archive.sha256:
                return
        part.unlink()
        if start == 0:
            raise _WrongFileError(f"serves another file as {archive.filename} (its sha256 differs)")
    raise failure


def _receive(index: _Index, url: str, archive: Archive, part: Path, progress: Progress | None) -> int:
    """Append to ``part`` until the connection ends; hands out the byte where it began."""
    start = part.stat().st_size if part.exists() else 0
    if start >= archive.size_bytes:
        return start
    headers = {"Range": f"bytes={start}-"} if start else {}
    with index.open(url, **headers) as response:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            start = 0
        length = response.headers.get("Content-Length")
        if length is not None and start + int(length) != archive.size_bytes:
            raise _WrongFileError(f"serves another file as {archive.filename} (its size differs)")
        with writing(part):
            target = part.open("ab" if start else "wb")
        with target:
            done = start
            while done < archive.size_bytes and (chunk := response.read(CHUNK_BYTES)):
                with writing(part):
                    target.write(chunk)
                    target.flush()  # so that a full disk is met here and not at closing
                done += len(chunk)
                if progress is not None:
                    progress(archive.filename, done, archive.size_bytes)
    return start
