"""The parent's hold on one worker process: ask, freeze, thaw, end."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO, TypeVar

import msgspec
import psutil

from unlag.errors import ContenderError, RunError, UnlagError
from unlag.measure import exchange

Answer = TypeVar("Answer", bound=exchange.Reply)

WORKER = "unlag.measure.worker"
"""The module that a process runs."""

TAIL_BYTES = 2000
"""So much of what a crashed contender printed is kept for --debug."""


class WorkerProcess:
    """One contender's process. It is stopped (SIGSTOP) whenever it isn't asked something."""

    def __init__(self, name: str, module: str = WORKER) -> None:
        self.name = name
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(  # noqa: S603 - our own modules only
            [sys.executable, "-P", "-m", module],  # -P: never import from the user's folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._handle = psutil.Process(self._process.pid)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name=f"unlag-{name}").start()
        self._decoder: msgspec.json.Decoder[exchange.Reply] = msgspec.json.Decoder(exchange.Reply)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def _listen(self) -> None:
        """Blocks in a read; an empty line tells that the process has closed its end."""
        stdout = self._process.stdout
        while stdout is not None:
            line = stdout.readline()
            self._lines.put(line)
            if not line:
                return

    def ask(self, request: exchange.Request, reply: type[Answer], patience_s: float) -> Answer:
        """Send one request and wait for its reply.

        Raises:
            ContenderError: the process died, hung, or could not do it.
        """
        stdin = self._process.stdin
        if stdin is None:
            raise UnlagError("a worker was started without a pipe")
        try:
            stdin.write(msgspec.json.encode(request) + b"\n")
            stdin.flush()
        except OSError:
            raise ContenderError(self._obituary()) from None
        try:
            line = self._lines.get(timeout=patience_s)
        except queue.Empty:
            self.end()
            message = f"{self.name} hangs: no answer for {patience_s:.0f} s; it was ended"
            raise ContenderError(message, hint="--patience SECONDS waits longer") from None
        if not line:
            raise ContenderError(self._obituary())
        answer = self._decoder.decode(line)
        if isinstance(answer, exchange.Failed):
            if answer.usage:
                kind = RunError if answer.raised else ContenderError
                raise kind(f"{self.name}: {answer.message}")
            raise UnlagError(f"{self.name}: {answer.message}")
        if not isinstance(answer, reply):
            raise UnlagError(f"{self.name} answered {type(answer).__name__} where {reply.__name__} was due")
        return answer

    def freeze(self) -> None:
        """Stop the process with all its threads, so that spinning pools leave the cores alone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._handle.suspend()

    def thaw(self) -> None:
        """Let it go on."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._handle.resume()

    def end(self) -> None:
        """Kill it, frozen or not, and reap it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _obituary(self) -> str:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            why = " (out of memory?)" if name == "SIGKILL" else ""
            return f"{self.name} was killed while it was measured: {name}{why}"
        words = self._last_words()
        last = f", last words: {words}" if words else ""
        return f"{self.name} crashed while it was measured: exit code {code}{last}"

    def printed(self) -> str:
        """What it has printed so far, its libraries included. Only while it waits: both read and write at one place."""
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    def _last_words(self) -> str:
        lines = self.printed()[-TAIL_BYTES:].strip().splitlines()
        return lines[-1] if lines else ""
