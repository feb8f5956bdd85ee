"""A package index on 127.0.0.1 that serves one file, and misbehaves on demand."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def wheel(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@dataclass
class Index:
    """What the server serves, how it misbehaves, and what it was asked."""

    filename: str
    data: bytes
    url: str = ""
    html: bool = False
    honors_range: bool = True
    cut_at: list[int] = field(default_factory=list)
    """Each transfer, in turn, breaks off after so many bytes."""
    login: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)

    def ranges(self) -> list[str]:
        return [wanted for path, wanted in self.requests if path.startswith("/files/")]


class Server(ThreadingHTTPServer):
    def __init__(self, index: Index) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.index = index

    def handle_error(self, *_request: object) -> None:
        """Say nothing: clients hang up on purpose when the size is wrong."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        index = self.server.index
        index.requests.append((self.path, self.headers.get("Range", "")))
        if index.login and self.headers.get("Authorization") != index.login:
            self.send_error(401)
        elif self.path == "/simple/toy-model/":
            self.page(index)
        elif self.path == f"/files/{index.filename}":
            self.file(index)
        else:
            self.send_error(404)

    def page(self, index: Index) -> None:
        link = f"../../files/{index.filename}#sha256={sha256(index.data)}"
        other = "../../files/toy_model-0.9-py3-none-any.whl"
        if index.html:
            body = f'<html><a href="{other}">x</a><br/><a href="{link}">{index.filename}</a></html>'.encode()
            kind = "text/html"
        else:
            body = json.dumps({"files": [{"url": other}, {"url": link}]}).encode()
            kind = "application/vnd.pypi.simple.v1+json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def file(self, index: Index) -> None:
        wanted = self.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and index.honors_range else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(index.data) - 1}/{len(index.data)}")
        self.send_header("Content-Length", str(len(index.data) - start))
        self.end_headers()
        end = start + index.cut_at.pop(0) if index.cut_at else len(index.data)
        self.wfile.write(index.data[start:end])

    def log_message(self, *_args: object) -> None:
        pass


@contextlib.contextmanager
def serving(filename: str, data: bytes) -> Iterator[Index]:
    served = Index(filename, data)
    server = Server(served)
    served.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
