"""What a fix starts from: comparison, scores and explanation; kept, so that a resumed fix has them already."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np

from unlag.assets.cache import cache_folder
from unlag.measure.accuracy import Scored
from unlag.measure.bench import Bench
from unlag.measure.compare import STANDARD, Compared
from unlag.measure.comparison import Comparison
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.proof.explanation import Explanation
from unlag.runtimes.contract import find_runtime
from unlag.runtimes.onnxruntime.nvidia import runtime_version
from unlag.stages.journal import Journal

FOLDER = "unfinished"


class _Rows(msgspec.Struct, frozen=True):
    """An evaluation's rows as bytes: float32, [rows, width]."""

    data: bytes
    shape: tuple[int, ...]


class _Start(msgspec.Struct, frozen=True):
    comparison: Comparison
    rows: dict[str, _Rows]
    explanation: Explanation
    observed: Observed


def open_journal(bench: Bench, *, resume: bool) -> Journal:
    """The journal of this case on this machine; an empty one, unless an interrupted fix is to be resumed."""
    journal = Journal(cache_folder() / FOLDER / _key(bench))
    if not resume:
        journal.drop()
    return journal


def keep_start(journal: Journal, compared: Compared, explanation: Explanation, observed: Observed) -> None:
    """Keep what was measured before the first stage."""
    rows = {name: _Rows(s.rows.tobytes(), s.rows.shape) for name, s in compared.scores.items()}
    journal.write(_Start(compared.comparison, rows, explanation, observed), "start")


def read_start(bench: Bench, journal: Journal) -> tuple[Compared, Explanation, Observed] | None:
    """What an interrupted fix had measured before its first stage."""
    start = journal.read(_Start, "start")
    if start is None:
        return None
    rows = {name: np.frombuffer(kept.data, np.float32).reshape(kept.shape) for name, kept in start.rows.items()}
    task = bench.workload.evaluation
    scores = {} if task is None else {name: Scored(task, own, rows[STANDARD]) for name, own in rows.items()}
    return Compared(start.comparison, scores), start.explanation, start.observed


def _key(bench: Bench) -> str:
    """Everything that what is measured depends on: models, workload, machine, versions."""
    case, host = bench.case, bench.host
    facts = (
        msgspec.json.encode(case),
        _digest(case.standard),
        _digest(case.variant),
        _file_digest(Path(case.workload)) if case.workload.endswith(".npz") else "",
        str(host.cpu.model),
        bench.cores,
        bench.threads,
        runtime_version(),
        version("unlag"),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _digest(variant: Variant) -> str:
    """Of all files that the model is made of."""
    return "".join(_file_digest(file) for file in find_runtime(variant.runtime).files(variant))


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
