"""How right a model for the NPU is: by the codes in its file on the CPU, which is quick, and in the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from unlag.errors import UnlagError, UsageError
from unlag.measure.accuracy import Scored, agreement
from unlag.measure.bench import Bench, inspect
from unlag.measure.comparison import Accuracy
from unlag.measure.spread import Spread
from unlag.measure.statistics import Interval, paired_bootstrap
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.model.workload import Evaluation, Feed, Rows, Signature, TensorInfo, WorkloadRequest
from unlag.runtimes.onnxruntime.qualcomm import runtime_version
from unlag.stages.fixed import PartScore
from unlag.stages.journal import Journal
from unlag.workloads.contract import load_workload

ITEMS = (128, 64, 32, 16)
"""So many of the task's items are scored in the simulator: the most that take no longer than it may."""


class Part(NamedTuple):
    """Some of a task's items, and what has to be run for them."""

    items: npt.NDArray[np.int64]
    feeds: tuple[int, ...]
    rows: npt.NDArray[np.int64]
    """Those that the feeds give, in their order."""
    seed: int


def static_bench(bench: Bench) -> Bench:
    """The same bench with every input of the workload in the shape that is timed: an NPU takes no other.

    Texts are padded to it, or cut. What is scored is therefore the task at this shape.

    Raises:
        UsageError: the workload can't be made for one shape only.
    """
    case = bench.case
    inspection = inspect(case.standard)
    feed = bench.workload.feed
    signature = Signature(
        inputs=tuple(TensorInfo(i.name, i.dtype, feed[i.name].shape) for i in inspection.signature.inputs),
        outputs=inspection.signature.outputs,
    )
    request = WorkloadRequest(
        argument="", signature=signature, shape=case.shapes[0], dims={}, seed=case.seed, limits=inspection.limits
    )
    workload = load_workload(case.workload, request)
    feeds = [*workload.agreement, *workload.calibration, *(workload.evaluation.feeds if workload.evaluation else ())]
    for other in feeds:
        wrong = [name for name, array in other.items() if name in feed and array.shape != feed[name].shape]
        if wrong:
            sizes = f"{list(other[wrong[0]].shape)} and {list(feed[wrong[0]].shape)}"
            raise UsageError(
                f"an NPU takes inputs of one shape, and the workload gives {wrong[0]} in {sizes}",
                hint="pad all inputs to one shape",
            )
    return dataclasses.replace(bench, workload=workload)


def choose_part(evaluation: Evaluation, count: int, seed: int) -> Part | None:
    """The first ``count`` items of a seeded order: fewer of them are always a part of more.

    Nothing where it isn't known which rows an item is made of, or the feeds give other rows than one for each of
    their own.
    """
    if evaluation.rows_of is None:
        return None
    items = np.sort(np.random.default_rng(seed).permutation(len(evaluation.labels))[:count])
    ends = np.cumsum([len(next(iter(feed.values()))) for feed in evaluation.feeds])
    wanted = np.unique(evaluation.rows_of[items])
    feeds = np.unique(np.searchsorted(ends, wanted, side="right"))
    starts = np.concatenate(([0], ends[:-1]))
    rows = np.concatenate([np.arange(starts[feed], ends[feed]) for feed in feeds])
    return Part(items, tuple(int(feed) for feed in feeds), rows, seed)


def largest_part(evaluation: Evaluation, run_s: float, limit_s: float, seed: int) -> Part | None:
    """As many items as can be run in that time; the fewest, where it takes that long for a run."""
    part = None
    for count in ITEMS:
        part = choose_part(evaluation, count, seed)
        if part is None or len(part.feeds) * run_s <= limit_s:
            break
    return part


class _Judged(msgspec.Struct, frozen=True):
    """What was found out about a model in one way; kept, so that a resumed fix need not run it again."""

    score: PartScore | None = None
    cosine: float = 0.0
    run_s: float = 0.0


class Judge:
    """Holds models for the NPU against the standard on the same items. A model is known by its name."""

    def __init__(
        self, bench: Bench, standard: Scored | None, answers: Sequence[Feed], journal: Journal | None = None
    ) -> None:
        self._bench = bench
        self._standard = standard
        self._answers = list(answers)
        self._journal = journal or Journal()
        self.run_s = 0.0
        """Seconds that the simulator took for a run of the last model, on one core."""

    def by_codes(self, name: str, path: Path) -> PartScore | None:
        """Points by the codes in a file, computed on the CPU; nothing without labels for single items.

        Raises:
            ContenderError: it can't be opened or run.
        """
        evaluation = self._bench.workload.evaluation
        part = None if evaluation is None else choose_part(evaluation, ITEMS[0], self._bench.case.seed)
        if part is None:
            return None
        return self._once("by codes", name, lambda: _Judged(self._score(name, by_codes(path), part))).score

    def simulate(self, name: str, variant: Variant, limit_s: float, fewest: int = ITEMS[-1]) -> PartScore | None:
        """Points in the simulator, on as many items as it can run in the time; nothing where these are too few.

        Raises:
            ContenderError: it can't be opened or run.
        """
        judged = self._once("simulated", name, lambda: self._simulated(name, variant, limit_s, fewest))
        self.run_s = judged.run_s
        return judged.score

    def cosine(self, name: str, variant: Variant) -> float:
        """Of a variant's outputs to the standard's, on the agreement runs.

        Raises:
            ContenderError: it can't be opened or run.
            UsageError: the outputs can't be compared.
        """

        def judged() -> _Judged:
            answers = self._spread(name, variant).answers(self._bench.workload.agreement)
            return _Judged(cosine=agreement(self._answers, answers).cosine)

        return self._once("cosine", name, judged).cosine

    def _once(self, how: str, name: str, judge: Callable[[], _Judged]) -> _Judged:
        step = (runtime_version(), how, name)
        known = self._journal.read(_Judged, *step)
        if known is None:
            known = judge()
            self._journal.write(known, *step)
        return known

    def _simulated(self, name: str, variant: Variant, limit_s: float, fewest: int) -> _Judged:
        run_s = self._spread(name, variant).run_s(self._bench.workload.feed)
        evaluation, cores = self._bench.workload.evaluation, len(self._bench.cores)
        if evaluation is None:
            return _Judged(run_s=run_s)
        part = largest_part(evaluation, run_s / cores, limit_s, self._bench.case.seed)
        if part is None or len(part.items) < min(fewest, len(evaluation.labels)):
            return _Judged(run_s=run_s)
        return _Judged(self._score(name, variant, part), run_s=run_s)

    def _score(self, name: str, variant: Variant, part: Part) -> PartScore:
        evaluation, standard = self._bench.workload.evaluation, self._standard
        if evaluation is None or standard is None:
            raise UnlagError("a model was scored without a labelled workload")
        feeds = [evaluation.feeds[feed] for feed in part.feeds]
        made = self._spread(name, variant).rows(feeds, evaluation.reduction)
        if made.shape != (len(part.rows), *standard.rows.shape[1:]):
            raise UsageError(f"{name}: it gives {list(made.shape)} numbers, other ones than the standard")
        return scored_part(evaluation, standard, part, made, self._bench.case.seed)

    def _spread(self, name: str, variant: Variant) -> Spread:
        return Spread(name, variant, self._bench.cores, progress=self._bench.progress)


def by_codes(path: Path) -> Variant:
    """A quantized file on the CPU, every code computed as it says: no pass may take quantizing nodes out."""
    return Variant(DEFAULT_RUNTIME, str(path), {"optimization": "off"})


def judge_of(bench: Bench, standard: Scored | None, journal: Journal) -> Judge:
    """A judge that knows what the standard answers.

    Raises:
        ContenderError: the standard can't be run.
    """
    spread = Spread("the standard", bench.case.standard, bench.cores)
    return Judge(bench, standard, spread.answers(bench.workload.agreement), journal)


def scored_part(evaluation: Evaluation, standard: Scored, part: Part, made: Rows, seed: int) -> PartScore:
    """The score on a part, from the rows that were run for it and the standard's."""
    rows = standard.rows.copy()
    rows[part.rows] = made
    predictions = np.asarray(evaluation.predict(rows, standard.rows), np.float64)[part.items]
    labels, others = evaluation.labels[part.items], standard.predictions[part.items]
    change: Interval = paired_bootstrap(evaluation.score, predictions, others, labels, seed=seed)
    return PartScore(
        accuracy=Accuracy(evaluation.metric, evaluation.score(predictions, labels)),
        standard=Accuracy(evaluation.metric, evaluation.score(others, labels)),
        change=change,
        items=len(part.items),
        of=len(evaluation.labels),
        runs=len(part.feeds),
        seed=part.seed,
    )
