"""A workload: the inputs that every contender gets, and how their outputs are scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from unlag.errors import UsageError

Array = npt.NDArray[np.generic]
Feed = Mapping[str, Array]
"""One run's inputs by name."""

Dimension = int | str | None
"""A size, the name of a dynamic size, or nothing known."""


class TensorInfo(msgspec.Struct, frozen=True):
    """Name, element type (numpy's name for it, such as ``float32``) and shape of a tensor."""

    name: str
    dtype: str
    shape: tuple[Dimension, ...] | None


class Signature(msgspec.Struct, frozen=True):
    """What a model takes and gives."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


class Shape(msgspec.Struct, frozen=True):
    """A batch size and, for models that have one, a sequence length: ``1x128``."""

    batch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.sequence}"


def parse_shape(text: str) -> Shape:
    """Read ``BxS``.

    Raises:
        UsageError: not two positive whole numbers.
    """
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{text!r} is not a shape", hint="write batch x sequence, such as 1x128")
    return Shape(int(parts[0]), int(parts[1]))


Reduction = Literal["none", "mean_pool"]
"""What the worker makes of a run's outputs before it hands them out: all of them as they are, or the mean
of the first output over the tokens that ``attention_mask`` keeps, [batch, hidden]."""

Rows = npt.NDArray[np.float32]
"""One evaluated row for each row of the evaluation's feeds, in the feeds' order, [rows, width]."""


@dataclass(frozen=True)
class Evaluation:
    """A labelled task: what to run, and how its outputs become a score.

    ``feeds`` are run one by one; the first outputs, reduced, are stacked to ``Rows``.
    ``predict(rows, standard_rows)`` gives one prediction an item (a probe may be fitted on the standard's rows);
    ``score(predictions, labels)`` gives the metric in points (0 to 100), higher is better.
    """

    metric: str
    feeds: Sequence[Feed]
    reduction: Reduction
    labels: npt.NDArray[np.float64]
    predict: Callable[[Rows, Rows], npt.NDArray[np.float64]]
    score: Callable[[npt.NDArray[np.float64], npt.NDArray[np.float64]], float]
    rows_of: npt.NDArray[np.int64] | None = None
    """Rows that each prediction is made of, [items, rows of an item], so that some of the items can be scored alone."""


@dataclass(frozen=True)
class Workload:
    """``feed`` is what is timed; ``agreement`` are the runs whose outputs are compared with the standard's."""

    name: str
    shape: str
    feed: Feed
    agreement: Sequence[Feed] = field(default_factory=tuple)
    evaluation: Evaluation | None = None
    calibration: Sequence[Feed] = field(default_factory=tuple)
    """Runs that are like the task's but are not scored: where static quantization takes its ranges from."""
    invented: str = ""
    """Inputs that nobody gave and sizes that nobody told, for a message where a model refuses them."""


@dataclass(frozen=True)
class WorkloadRequest:
    """What a workload is made from. ``dims`` fixes dynamic dimensions by name (``--dim NAME=VALUE``)."""

    argument: str
    """What followed the workload's name: a file's path, ``module:function``, or nothing."""
    signature: Signature
    """The standard's signature; inputs that it doesn't have need not be made."""
    shape: Shape
    dims: Mapping[str, int]
    seed: int
    limits: Mapping[str, int] = field(default_factory=dict)
    """Exclusive upper bound of each integer input that looks up a table, such as a vocabulary's size."""


class Agreement(msgspec.Struct, frozen=True):
    """How near two models' outputs are, over all outputs of the agreement runs."""

    cosine: float
    max_error: float
    """Largest absolute difference."""
    relative_error: float
    """Largest absolute difference over the standard's largest absolute value."""
    top1: float | None
    """Share of rows whose largest entry is the same one; nothing where the outputs have no class axis."""
