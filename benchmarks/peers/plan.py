"""What has to be done, in which order, under which names; and which of it a resumed run need not do again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.peers.catalogue import STANDARD
from benchmarks.peers.contract import Peer, Subject
from benchmarks.peers.records import Failure, Raced, Run

from unlag.model.workload import Shape

Step = Literal["make", "score", "race"]

SCORE_S, RACE_S_PER_CONTENDER = 20.0, 25.0
"""Rough times, to tell what is left."""


@dataclass(frozen=True)
class Task:
    """One step. A race is of all peers, and has none of its own."""

    key: str
    step: Step
    subject: Subject
    shape: Shape
    expected_s: float
    peer: Peer | None = None


def tasks_of(subject: Subject, peers: Sequence[Peer], shapes: Sequence[Shape]) -> Iterator[Task]:
    """Make all models, score all, race all; what is the same at several shapes is done once."""
    seen: set[str] = set()
    for task in _tasks(subject, peers, shapes):
        if task.key not in seen:
            seen.add(task.key)
            yield task


def _tasks(subject: Subject, peers: Sequence[Peer], shapes: Sequence[Shape]) -> Iterator[Task]:
    for peer in peers:
        for shape in shapes:
            yield Task(make_key(subject, peer, shape), "make", subject, shape, peer.expected_s, peer)
    for peer in peers:
        for shape in shapes:
            yield Task(score_key(subject, peer, shape), "score", subject, shape, SCORE_S, peer)
    for shape in shapes:
        yield Task(race_key(subject, shape), "race", subject, shape, RACE_S_PER_CONTENDER * len(peers))


def make_key(subject: Subject, peer: Peer, shape: Shape) -> str:
    """One model for all shapes, unless the tool makes one for each."""
    return f"make/{subject.name}/{peer.name}" + (f"/{shape}" if peer.per_shape else "")


def score_key(subject: Subject, peer: Peer, shape: Shape) -> str:
    """Scores may depend on the batch, for some models quantize a batch's values together."""
    return f"score/{subject.name}/{peer.name}/" + (str(shape) if peer.per_shape else f"batch {shape.batch}")


def race_key(subject: Subject, shape: Shape) -> str:
    """One race a shape."""
    return f"race/{subject.name}/{shape}"


def entrants(run: Run, subject: Subject, peers: Sequence[Peer], shape: Shape) -> list[Peer]:
    """Peers whose model was made and could be scored."""
    ready = []
    for peer in peers:
        scored = run.records.get(score_key(subject, peer, shape))
        if run.made(make_key(subject, peer, shape)) and scored is not None and not isinstance(scored, Failure):
            ready.append(peer)
    return ready


def is_done(task: Task, run: Run, peers: Sequence[Peer]) -> bool:
    """Whether a resumed run may skip it. What failed is tried again, and a race is run again for new entrants."""
    record = run.records.get(task.key)
    if record is None:
        return False
    if isinstance(record, Failure):
        return record.final
    if isinstance(record, Raced):
        return record.entered >= {peer.name for peer in entrants(run, task.subject, peers, task.shape)}
    return True


def with_standard(peers: Sequence[Peer], standard: Peer) -> tuple[Peer, ...]:
    """The chosen peers and the standard, which every ratio is to."""
    return tuple(peers) if any(peer.name == STANDARD for peer in peers) else (standard, *peers)
