"""The fix: stages with what was kept and rejected, in the JSON that scripts rely on."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.measure.comparison import Accuracy, Comparison
from unlag.measure.statistics import Interval
from unlag.proof.explanation import Explanation

StageName = Literal["baseline", "quantization", "graph", "hardware"]


class Rejected(msgspec.Struct, frozen=True):
    """A remedy that was tried and not kept, and why, with numbers."""

    remedy: str
    reason: str


class Kept(msgspec.Struct, frozen=True):
    """A remedy that was kept, and what that was measured to be worth."""

    remedy: str
    reason: str
    """What it changed when it was tried."""
    worth: Interval | None = None
    """Time of the finished model without it over its time with it; nothing where it can't be left out alone."""


class Decision(msgspec.Struct, frozen=True):
    """What one stage's search came to."""

    kept: tuple[Kept, ...]
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...] = ()
    """What the reader should know beside it, such as why nothing was kept."""

    def __add__(self, later: Decision) -> Decision:
        """Two searches of one stage, one after the other."""
        return Decision(self.kept + later.kept, self.rejected + later.rejected, self.notes + later.notes)


NOTHING = Decision((), ())


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the staged table; all rows are timed in one contest at the end."""

    name: StageName
    latency_ms: Interval
    speedup_over_baseline: Interval
    slowdown_to_standard: Interval
    accuracy: Accuracy | None
    accuracy_change: Interval | None
    """Points, to the standard."""
    size_bytes: int
    kept: tuple[Kept, ...]
    rejected: tuple[Rejected, ...]


class Way(msgspec.Struct, frozen=True):
    """One way to cut the same texts into batches."""

    name: str
    batches: int
    padding: float
    """Share of the computed tokens that only fill up."""
    time_ms: Interval
    ratio: Interval
    """Its time over that of batches as the texts come, each padded to its longest."""
    widths: tuple[int, ...] = ()
    """Of the buckets, where there are some."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """What the lengths of the workload's texts mean for the time that the fixed model takes for them."""

    texts: int
    rows: int
    """Texts that were run: all of them, or a sample."""
    batch: int
    shortest: int
    median: int
    longest: int
    ways: tuple[Way, ...]
    """The first is as the texts come."""
    quiet: bool

    def way(self, name: str) -> Way:
        """The way of that name."""
        return next(way for way in self.ways if way.name == name)

    @property
    def best(self) -> Way:
        """The one that takes least time."""
        return min(self.ways, key=lambda way: way.ratio.estimate)


class Rate(msgspec.Struct, frozen=True):
    """What so many replicas with so many threads each got done together."""

    replicas: int
    threads: int
    rows_per_s: Interval
    memory_bytes: int
    """Peaks of all processes together."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rows a second of the whole machine, by how its cores are shared out."""

    cores: int
    batch: int
    """Rows of a run."""
    standard: tuple[Rate, ...]
    fixed: tuple[Rate, ...]
    replicas: int
    """Of the fixed model, as it is used best; ``threads`` are each copy's."""
    threads: int
    gain: Interval
    """Rows a second of the fixed model at its best over the standard's at its best."""
    refused: tuple[Rejected, ...]
    """Ways that were not tried, and why."""
    pinned: bool
    """Whether each copy was kept on cores of its own."""
    quiet: bool


class OtherRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The best that another runtime makes of the models at hand, within the budget."""

    runtime: str
    model: str
    """What it was given, or the name of its own tools' recipe."""
    ratio: Interval
    """Its time over that of the model that the stages have made for the standard's runtime."""
    loss: Interval | None
    """Points below the standard; nothing without a labelled workload."""
    size_bytes: int


class PartScore(msgspec.Struct, frozen=True, kw_only=True):
    """How right a model is on some of the task's items, beside the standard on the same ones."""

    accuracy: Accuracy
    standard: Accuracy
    change: Interval
    """Points, to the standard, resampled in pairs."""
    items: int
    of: int
    """All items of the task."""
    runs: int
    seed: int
    """Of the choice of items."""


class Fallback(msgspec.Struct, frozen=True):
    """Nodes of one kind that stay on the CPU, and why, in the words of the provider."""

    operator: str
    reason: str
    nodes: int = 1


class OnNpu(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiler for the NPU makes of a model."""

    model: str
    """What it is."""
    failed: str = ""
    """Why it can't be compiled at all; then the numbers below are zero."""
    partitions: int = 0
    """Pieces of the graph that the NPU runs: between two of them the CPU computes."""
    npu_nodes: int = 0
    fallback_nodes: int = 0
    """Nodes that stay on the CPU."""
    fallback: tuple[Fallback, ...] = ()
    context_bytes: int = 0
    """Of the context binary, which is what is loaded into the NPU."""
    operators: dict[str, int] = {}
    """Of the graph that is compiled, by the NPU's names."""
    cosine: float | None = None
    """Of its outputs to the standard's, in the simulator."""
    simulated: PartScore | None = None
    """In the simulator; nothing without a labelled workload, or where too few items could be run."""
    by_codes: PartScore | None = None
    """By the codes in its file, computed on the CPU: quicker, and near to what the simulator gives."""

    @property
    def whole(self) -> bool:
        """Whether all of it runs on the NPU, in one piece."""
        return self.partitions == 1 and not self.fallback_nodes

    @property
    def moves(self) -> int:
        """Operators that compute nothing: they turn axes, or change the codes of numbers."""
        return sum(self.operators.get(name, 0) for name in ("Transpose", "Reshape", "Convert", "Cast"))


class Npu(OnNpu, frozen=True, kw_only=True):
    """The model that goes out for the NPU, and what it was made of."""

    before: OnNpu
    """The variant as it is; without one, what ONNX Runtime's quantizer makes of the standard by default."""
    compiler: str
    """The package that compiled it."""
    chip: str
    """The number of the chip that it was compiled for, as Qualcomm counts them."""
    kept: tuple[Kept, ...]
    rejected: tuple[Rejected, ...]
    simulated_run_s: float
    """Seconds that the simulator takes for one run on one core of this machine: no time of an NPU."""
    not_measured: tuple[str, ...]
    """What can't be told without a device."""


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """The staged way from the variant to the best model for this machine."""

    schema: int = 1
    kind: Literal["fix"] = "fix"
    explanation: Explanation
    stages: tuple[StageResult, ...]
    npu: Npu | None = None
    """Filled by ``--target npu``."""
    output: str
    """The folder that ``unlag.load`` opens."""
    result: Comparison | None
    """The standard against the fixed model, in a contest of its own; nothing where the target can't be timed here."""
    standard_latency_ms: Interval
    standard_accuracy: Accuracy | None
    standard_size_bytes: int
    notes: tuple[str, ...] = ()
    lengths: Lengths | None = None
    """What padding costs and batches by length win; nothing where the workload has no texts of different lengths."""
    throughput: Throughput | None = None
    """Filled by ``--objective throughput``."""
    runtimes: tuple[OtherRuntime, ...] = ()
    """Filled by ``--any-runtime``: the best of each other runtime, whether it was moved to or not."""
