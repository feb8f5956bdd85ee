"""The three steps: have a tool make its model, score a model alone, and race all of them at one shape."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from benchmarks.peers.contract import Artifact, Peer, Subject
from benchmarks.peers.make import ORDER, OUTCOME, Order, Outcome
from benchmarks.peers.records import Failure, Made, Raced, Record, Scored, Timed

from unlag.errors import ContenderError, UnlagError
from unlag.measure.accuracy import agreement, score
from unlag.measure.bench import Bench, open_bench, quick
from unlag.measure.contest import Contest, ContestResult
from unlag.measure.process import WorkerProcess
from unlag.measure.progress import silent
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape, Workload

ROOT = Path(__file__).parents[2]

CONTROL = "a second copy of the standard"

LONGEST_MAKE_S = 40 * 60.0
PATIENCE_S = 900.0
"""``torch.compile`` may work for minutes at its first run."""

SAME_MODEL = 0.99
"""Cosine of the outputs of a model for one shape to those of the same model for all shapes. Compiled int8 rounds in
another order."""

AGREEMENT = (
    "there are no labels, so this is the cosine to the standard's outputs x 100, on crops of real pictures; beside it \
the share of pictures with the same class on top, and the largest error of an output over the largest output"
)

CHILD = (sys.executable, "-m", "benchmarks.peers.make")


def children_find_this() -> None:
    """Let child processes import this benchmark: they don't look into the folder that they are started in."""
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if str(ROOT) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *known])


def make(key: str, peer: Peer, order: Order, folder: Path, child: Sequence[str] = CHILD) -> Record:
    """Have the peer make its model in ``folder``, in a process of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / ORDER).write_bytes(msgspec.json.encode(order))
    log = folder / "log.txt"
    with log.open("wb") as printed:
        try:
            done = subprocess.run(  # noqa: S603 - this benchmark's own module
                [*child, str(folder / ORDER)],
                stdout=printed,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=LONGEST_MAKE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Failure(key=key, message=f"{peer.name} was stopped after {LONGEST_MAKE_S / 60:.0f} minutes")
    result = folder / OUTCOME
    if not result.exists():
        words = log.read_text("utf-8", "replace").strip().splitlines()
        last = f": {words[-1]}" if words else ""
        return Failure(key=key, message=f"it crashed (exit code {done.returncode}){last}")
    outcome = msgspec.json.decode(result.read_bytes(), type=Outcome)
    if outcome.artifact is None:
        return Failure(key=key, message=outcome.message, seconds=outcome.seconds)
    return Made(key=key, artifact=outcome.artifact, seconds=outcome.seconds)


def bench_of(subject: Subject, shape: Shape, threads: int | None, rounds: int, seed: int) -> Bench:
    """Cores, threads and workload at one shape, the same for every contender."""
    case = Case(
        standard=subject.standard,
        variant=subject.standard,
        workload=subject.workload,
        shapes=(shape,),
        rounds=rounds,
        max_rounds=2 * rounds,
        threads=threads,
        seed=seed,
        patience_s=PATIENCE_S,
    )
    return open_bench(case, shape, silent)


def score_alone(key: str, artifact: Artifact, subject: Subject, bench: Bench) -> Record:
    """Its points on the labelled task, or how near it is to the standard where there are no labels."""
    workload = _workload_for(artifact.variant, subject, bench)
    contenders = {"it": artifact.plain or artifact.variant, "raced": artifact.variant, "standard": subject.standard}
    with _contest(contenders, bench, workload) as contest:
        alike = None
        if artifact.plain is not None:
            raced, plain = (contest.answers(name, [workload.feed]) for name in ("raced", "it"))
            contest.retire("raced")
            alike = agreement(plain, raced).cosine
            if alike < SAME_MODEL:
                return Failure(key=key, message=f"for one shape it computes something else: cosine {alike:.4f}")
        if workload.evaluation is not None:
            scored = score(contest, "it", workload.evaluation)
            return Scored(key=key, metric=scored.accuracy.metric, points=scored.value, alike=alike)
        expected, given = (contest.answers(name, workload.agreement) for name in ("standard", "it"))
    agreed = agreement(expected, given)
    return Scored(
        key=key,
        metric=AGREEMENT,
        points=100 * agreed.cosine,
        top1=agreed.top1,
        largest_error=agreed.relative_error,
        alike=alike,
    )


def _workload_for(variant: Variant, subject: Subject, bench: Bench) -> Workload:
    """The task as the model takes it: unlag may have fixed its shapes."""
    if variant.runtime != subject.standard.runtime:
        return bench.workload
    case = msgspec.structs.replace(bench.case, standard=variant, variant=variant)
    return open_bench(case, bench.case.shapes[0]).workload


def _contest(contenders: Mapping[str, Variant], bench: Bench, workload: Workload) -> Contest:
    return Contest(
        contenders,
        workload.feed,
        cores=bench.cores,
        threads=bench.threads,
        protocol=quick(bench.protocol, bench.case.rounds),
        start=partial(WorkerProcess, module="benchmarks.peers.worker"),
    )


def race(key: str, subject: Subject, contenders: Mapping[str, Variant], bench: Bench) -> Record:
    """All contenders in the same rounds. One that dies or hangs is dropped with its reason; then it starts again."""
    racing = dict(contenders)
    dropped: dict[str, str] = {}
    while True:
        try:
            with _contest({CONTROL: subject.standard, **racing}, bench, bench.workload) as contest:
                result = contest.measure()
        except ContenderError as error:
            name = _culprit(error, racing)
            if name is None:
                return Failure(key=key, message=error.message)
            dropped[name] = error.message
            del racing[name]
            continue
        except UnlagError as error:
            return Failure(key=key, message=error.message)
        return Raced(
            key=key,
            subject=subject.name,
            shape=bench.workload.shape,
            threads=bench.threads,
            times=tuple(timed(result, name) for name in racing),
            control=timed(result, CONTROL),
            dropped=dropped,
            rounds=len(result.counted),
            disturbed_rounds=len(result.disturbed),
        )


def _culprit(error: ContenderError, names: Mapping[str, Variant]) -> str | None:
    """Whose death the message tells: it begins with a contender's name, and names may begin alike."""
    fitting = [name for name in names if error.message.startswith((f"{name} ", f"{name}:"))]
    return max(fitting, key=len, default=None)


def timed(result: ContestResult, name: str) -> Timed:
    """What the tables need of a contender's times."""
    sample = result.samples[name]
    first = sample.launches[0]
    return Timed(
        peer=name,
        medians_ms=tuple(float(value) for value in result.medians_ms(name)),
        first_answer_ms=first.load_ms + first.first_run_ms,
        peak_memory_bytes=sample.peak_memory_bytes,
        steady=all(launch.steady for launch in sample.launches),
    )
