"""How right a contender is on a labelled workload, and how near it is to the standard without labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unlag.errors import NonfiniteError, UsageError
from unlag.measure.comparison import Accuracy
from unlag.measure.contest import Contest
from unlag.measure.statistics import Floats, Interval, paired_bootstrap
from unlag.model.workload import Agreement, Array, Evaluation, Feed, Rows


class Scored:
    """One contender's predictions on an evaluation."""

    def __init__(self, evaluation: Evaluation, rows: Rows, standard_rows: Rows) -> None:
        self.evaluation = evaluation
        self.rows = rows
        self.predictions: Floats = np.asarray(evaluation.predict(rows, standard_rows), np.float64)
        self.value = evaluation.score(self.predictions, evaluation.labels)

    @property
    def accuracy(self) -> Accuracy:
        """The metric in points."""
        return Accuracy(metric=self.evaluation.metric, value=self.value)

    def change_from(self, standard: Scored, seed: int) -> Interval:
        """Points against the standard, resampled item by item in pairs."""
        return paired_bootstrap(
            self.evaluation.score, self.predictions, standard.predictions, self.evaluation.labels, seed=seed
        )


def score(contest: Contest, name: str, evaluation: Evaluation, standard_rows: Rows | None = None) -> Scored:
    """Run a contender on the evaluation; without ``standard_rows`` it is the standard itself."""
    rows = contest.evaluate(name, evaluation.feeds, evaluation.reduction)
    return Scored(evaluation, rows, rows if standard_rows is None else standard_rows)


def agreement(standard: Sequence[Feed], variant: Sequence[Feed]) -> Agreement:
    """Compare all outputs of the same runs, paired by name, or by order where names differ.

    A variant may give more than the standard does; what is not the standard's is left out.

    Raises:
        UsageError: the outputs can't be paired, or one side's hold NaN or infinity.
    """
    pairs = [pair for a, b in zip(standard, variant, strict=True) for pair in _paired(a, b)]
    if not pairs:
        raise UsageError("the outputs hold no numbers that could be compared")
    left = np.concatenate([a.ravel() for a, _ in pairs]).astype(np.float64)
    right = np.concatenate([b.ravel() for _, b in pairs]).astype(np.float64)
    for who, values in (("the standard", left), ("the variant", right)):
        if not np.isfinite(values).all():
            raise NonfiniteError(f"{who} gives NaN or infinite outputs on this workload: there is nothing to compare")
    norm = float(np.linalg.norm(left) * np.linalg.norm(right))
    largest = float(np.abs(left).max(initial=0.0))
    error = float(np.abs(left - right).max(initial=0.0))
    cosine = float(left @ right) / norm if norm else float(np.array_equal(left, right))
    return Agreement(
        cosine=cosine,
        max_error=error,
        relative_error=error / largest if largest else error,
        top1=_top1(pairs),
    )


def _paired(standard: Feed, variant: Feed) -> list[tuple[Array, Array]]:
    same_names = set(standard) <= set(variant)
    if len(standard) != len(variant) and not same_names:
        raise UsageError(f"the standard has {len(standard)} outputs and the variant {len(variant)}: not the same task")
    others = [variant[name] for name in standard] if same_names else list(variant.values())
    pairs = list(zip(standard.values(), others, strict=True))
    for (name, left), (_, right) in zip(standard.items(), pairs, strict=True):
        if left.shape != right.shape:
            raise UsageError(
                f"output {name!r} is {list(left.shape)} in the standard and {list(right.shape)} in the variant"
            )
    return pairs


def _top1(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """Share of equal winners over the last axis of two-dimensional outputs: classes, by convention."""
    hits: list[npt.NDArray[np.bool_]] = [
        left.argmax(axis=-1) == right.argmax(axis=-1) for left, right in pairs if left.ndim == 2 and left.shape[-1] > 1
    ]
    return float(np.concatenate(hits).mean()) if hits else None
