"""The child process that runs one tool: ``python -m benchmarks.peers.make ORDER.json``.

A tool of its own process can't disturb another one, may crash, and has all of its imports counted.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from pathlib import Path

import msgspec
from benchmarks.peers.catalogue import BY_NAME
from benchmarks.peers.contract import Artifact, Job, Subject
from benchmarks.peers.subjects import data_of

from unlag.errors import UnlagError
from unlag.model.workload import Shape

ORDER, OUTCOME = "order.json", "outcome.json"


class Order(msgspec.Struct, frozen=True):
    """What the child is to make, and where."""

    peer: str
    subject: Subject
    shape: Shape
    threads: int
    seed: int


class Outcome(msgspec.Struct, frozen=True):
    """What came of it; a message where no model did."""

    artifact: Artifact | None
    seconds: float
    message: str = ""


def carry_out(order: Order, folder: Path) -> Outcome:
    """Run the tool, and say what it raised where it made nothing."""
    job = Job(order.subject, order.shape, order.threads, order.seed, folder, data_of(order.subject, order.seed))
    peer = BY_NAME[order.peer]
    begin = time.perf_counter()
    try:
        file, function = peer.tool.split(":")
        make = getattr(importlib.import_module(f"benchmarks.peers.tools.{file}"), function)
        artifact = make(job, order.subject.starts[peer.start]) if peer.start else make(job)
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result here
        traceback.print_exc()
        return Outcome(None, time.perf_counter() - begin, in_a_line(error))
    return Outcome(artifact, time.perf_counter() - begin)


def in_a_line(error: Exception) -> str:
    """The message of an error."""
    if isinstance(error, UnlagError):
        return error.message
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    path = Path(sys.argv[1])
    made = carry_out(msgspec.json.decode(path.read_bytes(), type=Order), path.parent)
    (path.parent / OUTCOME).write_bytes(msgspec.json.encode(made))
