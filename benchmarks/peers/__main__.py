"""unlag's fixed models beside what other tools make of the same standards.

    python -m benchmarks.peers [--models NAME,...] [--peers NAME,...] [--shapes BxS,...] [--json FILE] [--markdown FILE]

Has every tool make its model, scores each model alone, then races all of them in the same interleaved rounds, shape by
shape. With --json every step is kept as soon as it is there, and the models beside it, so that an interrupted run goes
on with --resume. Everything takes hours; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from benchmarks.peers.catalogue import BY_NAME, STANDARD
from benchmarks.peers.contract import Peer, Subject
from benchmarks.peers.make import Order, in_a_line
from benchmarks.peers.plan import Task, entrants, is_done, make_key, tasks_of, with_standard
from benchmarks.peers.records import Failure, Made, Record, Run, read_run, write_run
from benchmarks.peers.steps import bench_of, children_find_this, make, race, score_alone
from benchmarks.peers.subjects import SUBJECTS
from benchmarks.peers.summary import entries as entries_of
from benchmarks.peers.summary import line_of, markdown_of, verdict_of

from unlag.errors import Missing
from unlag.measure.bench import Bench
from unlag.measure.host import read_host
from unlag.model.workload import Shape, parse_shape

EXPECTED_S = 60.0
"""So much work is taken to have gone as expected before the first step, so that a short one tells little."""


def main() -> int:
    """Run what is asked for."""
    arguments = _arguments()
    children_find_this()
    peers = with_standard([BY_NAME[name] for name in arguments.peers], BY_NAME[STANDARD])
    run = _opened(arguments, peers)
    if isinstance(run, str):
        print(run, file=sys.stderr)
        return 2
    with _folder_of(arguments) as folder:
        subjects = [SUBJECTS[name](folder) for name in arguments.models]
        plan = [(subject, _shapes(subject, arguments.shapes)) for subject in subjects]
        runner = _Runner(run, peers, folder, arguments)
        try:
            runner.go([task for subject, shapes in plan for task in tasks_of(subject, peers, shapes)])
        except KeyboardInterrupt:
            print("interrupted" + ("; go on with --resume" if arguments.json else ""), flush=True)
        for subject, shapes in plan:
            for shape in shapes:
                print(f"\n{subject.name}, {shape}")
                print("\n".join(verdict_of(entries_of(runner.run, subject, shape))))
        if arguments.markdown:
            arguments.markdown.write_text(markdown_of(runner.run, plan), "utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=_names, default=tuple(SUBJECTS), help=f"some of {','.join(SUBJECTS)}")
    parser.add_argument("--peers", type=_names, default=tuple(BY_NAME), help=f"some of {','.join(BY_NAME)}")
    parser.add_argument("--shapes", type=_parse_shapes, metavar="BxS,...", help="of models that take text")
    parser.add_argument("--rounds", type=int, default=10, help="undisturbed rounds that each race wants")
    parser.add_argument("--threads", type=int, help="one for each usable core without")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every step there, and models in FILE.models")
    parser.add_argument("--resume", action="store_true", help="go on with --json FILE; what failed is tried again")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    arguments = parser.parse_args()
    for what, given, known in (("model", arguments.models, SUBJECTS), ("peer", arguments.peers, BY_NAME)):
        if set(given) - set(known):
            parser.error(f"no such {what}; there are {', '.join(known)}")
    if arguments.resume and not arguments.json:
        parser.error("--resume needs --json FILE")
    return arguments


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parse_shapes(text: str) -> tuple[Shape, ...]:
    return tuple(parse_shape(name) for name in _names(text))


def _shapes(subject: Subject, wanted: Sequence[Shape] | None) -> Sequence[Shape]:
    return wanted if wanted and subject.kind == "transformer" else subject.shapes


@contextlib.contextmanager
def _folder_of(arguments: argparse.Namespace) -> Iterator[Path]:
    """Where models go: beside the JSON file, so that a run can be gone on with, or somewhere for the time being."""
    if arguments.json:
        folder = arguments.json.resolve().with_name(f"{arguments.json.name}.models")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="unlag-peers-") as name:
            yield Path(name)


def _opened(arguments: argparse.Namespace, peers: Sequence[Peer]) -> Run | str:
    """A new run or the one to go on with, by its own rounds, threads and seed; or why there is neither."""
    host = read_host()
    machine = f"{host.cpu.model}, {host.usable_cores} usable cores"
    versions = {name: _version(name) for peer in peers for name in peer.packages}
    today = datetime.now(UTC).date().isoformat()
    if arguments.json and arguments.json.exists():
        if not arguments.resume:
            return f"{arguments.json} is there; go on with --resume, or name another file"
        kept = read_run(arguments.json)
        if kept.host != machine:
            return f"{arguments.json} was measured on another machine: {kept.host}"
        return msgspec.structs.replace(kept, date=today, versions={**kept.versions, **versions})
    return Run(
        date=today,
        host=machine,
        isa=() if isinstance(host.cpu.isa, Missing) else host.cpu.isa,
        versions=versions,
        threads=arguments.threads or host.usable_cores,
        seed=arguments.seed,
        rounds=arguments.rounds,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class _Runner:
    """Does tasks one after the other, and keeps what each gave."""

    def __init__(self, run: Run, peers: Sequence[Peer], folder: Path, arguments: argparse.Namespace) -> None:
        self.run = run
        self._peers = peers
        self._folder = folder
        self._arguments = arguments
        self._benches: dict[tuple[str, Shape], Bench] = {}

    def go(self, tasks: Sequence[Task]) -> None:
        """All that are not done yet."""
        left = [task for task in tasks if not is_done(task, self.run, self._peers)]
        begin, expected_s = time.perf_counter(), 0.0
        for number, task in enumerate(left, 1):
            print(f"{task.key} ...", file=sys.stderr, flush=True)
            record = self._do(task)
            expected_s += task.expected_s
            if record is None:
                continue
            self.run = self.run.with_record(record)
            if self._arguments.json:
                write_run(self.run, self._arguments.json)
            pace = (time.perf_counter() - begin + EXPECTED_S) / (expected_s + EXPECTED_S)
            minutes = pace * sum(other.expected_s for other in left[number:]) / 60
            print(f"[{number}/{len(left)}, about {minutes:.0f} min left] {line_of(self.run, task.key)}", flush=True)

    def _do(self, task: Task) -> Record | None:
        """What a task gives; nothing where there is nothing to do it with."""
        begin = time.perf_counter()
        try:
            record = self._race(task) if task.peer is None else self._of_peer(task, task.peer)
        except Exception as error:  # noqa: BLE001 - one step's fault must not keep the others from being measured
            record = Failure(key=task.key, message=in_a_line(error))
        if record is None or isinstance(record, Made):  # a tool's own time is told by its process
            return record
        return msgspec.structs.replace(record, seconds=time.perf_counter() - begin)

    def _of_peer(self, task: Task, peer: Peer) -> Record | None:
        subject, shape = task.subject, task.shape
        if task.step == "make":
            unfit = peer.unfit_for(subject)
            if unfit:
                return Failure(key=task.key, message=unfit, final=True)
            order = Order(peer.name, subject, shape, self.run.threads, self.run.seed)
            return make(task.key, peer, order, self._folder / task.key)
        artifact = self.run.made(make_key(subject, peer, shape))
        return None if artifact is None else score_alone(task.key, artifact, subject, self._bench(subject, shape))

    def _race(self, task: Task) -> Record:
        ready = entrants(self.run, task.subject, self._peers, task.shape)
        artifacts = {peer.name: self.run.made(make_key(task.subject, peer, task.shape)) for peer in ready}
        contenders = {name: artifact.variant for name, artifact in artifacts.items() if artifact is not None}
        return race(task.key, task.subject, contenders, self._bench(task.subject, task.shape))

    def _bench(self, subject: Subject, shape: Shape) -> Bench:
        key = (subject.name, shape)
        if key not in self._benches:
            self._benches[key] = bench_of(subject, shape, self.run.threads, self.run.rounds, self.run.seed)
        return self._benches[key]


if __name__ == "__main__":
    sys.exit(main())
