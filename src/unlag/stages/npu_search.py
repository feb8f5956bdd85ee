"""Which numbers a model gets on the NPU: schemes are tried from the fewest bits up, until one is accurate enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from unlag.errors import UnlagError, UsageError
from unlag.measure.bench import Bench
from unlag.measure.statistics import Interval
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.runtimes.onnxruntime.qualcomm import Compilation
from unlag.stages.fixed import Kept, PartScore, Rejected
from unlag.stages.goal import Goal
from unlag.stages.npu_accuracy import Judge, by_codes
from unlag.stages.npu_models import SCHEMES, Scheme, compile_model, quantized
from unlag.stages.winners import UNLABELED_LOSS

SIMULATION_S = 600.0
"""What scoring one candidate may take in the simulator."""


@dataclass
class Candidate:
    """A scheme that was built, as far as it came."""

    scheme: Scheme
    path: Path
    compiled: Compilation
    by_codes: PartScore | None = None
    """Nothing without labels, or where nothing was quantized."""
    cosine: float = 1.0
    simulated: PartScore | None = None
    why_not: str = ""

    @property
    def whole(self) -> bool:
        """Whether all of it runs on the NPU, in one piece."""
        return self.compiled.partitions == 1 and not self.compiled.fallback_nodes

    @property
    def rank(self) -> tuple[int, float, float]:
        """The lower the better, among those of which none fits: what is on the CPU, and what is lost."""
        scored = self.simulated or self.by_codes
        lost = 0.0 if scored is None else -scored.change.estimate
        return self.compiled.partitions + self.compiled.fallback_nodes, lost, -self.cosine


@dataclass
class Search:
    """What a search for the NPU works with, and what it has decided so far."""

    bench: Bench
    goal: Goal
    judge: Judge
    options: dict[str, str]
    folder: Path
    kept: list[Kept] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def on_npu(self, candidate: Candidate) -> Variant:
        """The candidate's compiled model."""
        return Variant(DEFAULT_RUNTIME, candidate.compiled.context, self.options)

    def allows(self, scored: PartScore | None, cosine: float) -> bool:
        """Whether that is accurate enough to go out."""
        if scored is None:
            return cosine >= 1 - UNLABELED_LOSS
        return self.goal.allows(loss_of(scored))

    def reject(self, scheme: Scheme, reason: str) -> None:
        """Note why a scheme doesn't go out."""
        self.rejected.append(Rejected(scheme.name, reason))


def loss_of(scored: PartScore) -> Interval:
    """Points below the standard."""
    return Interval(-scored.change.estimate, -scored.change.high, -scored.change.low)


def choose(search: Search, prepared: Path) -> Candidate:
    """The first scheme that fits; the one with least on the CPU and least lost, where none does.

    Raises:
        UsageError: none can be compiled.
    """
    found: list[Candidate] = []
    for number, scheme in enumerate(SCHEMES):
        begin, end = number / len(SCHEMES), (number + 1) / len(SCHEMES)
        candidate = _try(search, search.bench.within(begin, end), scheme, prepared)
        if candidate is None:
            continue
        found.append(candidate)
        if not candidate.why_not:
            _keep(search, candidate)
            for later in SCHEMES[number + 1 :]:
                search.reject(later, "not tried: fewer bits are accurate enough")
            return candidate
    if not found:
        raise UsageError(f"no form of this model can be compiled for the NPU: {search.rejected[-1].reason}")
    best = min(found, key=lambda candidate: candidate.rank)
    search.rejected = [rejected for rejected in search.rejected if rejected.remedy != best.scheme.name]
    if best.simulated is None:
        _simulate(search, search.bench, best)
    search.notes.append(f"nothing that was tried fits, so what comes nearest goes out: {best.why_not}")
    _keep(search, best)
    return best


def _keep(search: Search, candidate: Candidate) -> None:
    search.kept.append(
        Kept(candidate.scheme.name, _in_words(candidate.simulated, candidate.cosine, "in the simulator"))
    )


def _try(search: Search, bench: Bench, scheme: Scheme, prepared: Path) -> Candidate | None:
    """Build, compile, judge on the CPU and in the simulator, as long as nothing speaks against it."""
    bench.progress(f"for the NPU: {scheme.name}", 0.0)
    number = SCHEMES.index(scheme)
    try:
        path = quantized(bench, scheme, prepared, search.folder / f"npu{number}.onnx")
        if path is None:
            search.reject(scheme, "there is no normalization and no Softmax in this model")
            return None
        variant = Variant(DEFAULT_RUNTIME, str(path), search.options)
        candidate = Candidate(scheme, path, compile_model(bench, variant, search.folder / f"compiled{number}"))
        if not candidate.compiled.context:
            raise UsageError(f"nothing of it runs on the NPU ({_left(candidate.compiled)})")
        if scheme.wide is not None:
            _judge_on_cpu(search, candidate)
        if not candidate.why_not:
            _simulate(search, bench, candidate)
    except UnlagError as error:
        search.reject(scheme, error.message)
        return None
    if not candidate.whole:
        pieces = f"{candidate.compiled.partitions} pieces on the NPU, {_left(candidate.compiled)}"
        candidate.why_not = ", ".join(filter(None, (pieces, candidate.why_not)))
    if candidate.why_not:
        search.reject(scheme, candidate.why_not)
    return candidate


def _judge_on_cpu(search: Search, candidate: Candidate) -> None:
    name = f"{candidate.scheme.name}, its codes on the CPU"
    candidate.by_codes = search.judge.by_codes(name, candidate.path)
    candidate.cosine = search.judge.cosine(name, by_codes(candidate.path))
    if not search.allows(candidate.by_codes, candidate.cosine):
        candidate.why_not = _in_words(candidate.by_codes, candidate.cosine, "by its codes, computed on the CPU")


def _simulate(search: Search, bench: Bench, candidate: Candidate) -> None:
    context, name = search.on_npu(candidate), f"{candidate.scheme.name}, simulated"
    bench.progress(f"{name}: starting", 0.5)
    candidate.simulated = search.judge.simulate(name, context, SIMULATION_S)
    candidate.cosine = search.judge.cosine(name, context)
    if not search.allows(candidate.simulated, candidate.cosine):
        lost = _in_words(candidate.simulated, candidate.cosine, "in the simulator")
        candidate.why_not = ", ".join(filter(None, (candidate.why_not, lost)))


def _in_words(scored: PartScore | None, cosine: float, where: str) -> str:
    """What was lost, and on what."""
    if scored is None:
        return f"cosine {cosine:.4f} to the standard's outputs {where}"
    change = scored.change
    points = f"{change.estimate:+.2f} points ({change.low:+.2f} to {change.high:+.2f})"
    return f"{points} {where}, on {scored.items} of {scored.of} items; cosine {cosine:.4f}"


def _left(compiled: Compilation) -> str:
    """What the CPU has to do, and why."""
    kinds = ", ".join(f"{one.nodes} {one.operator}" for one in compiled.fallback[:3])
    why = f": {compiled.fallback[0].reason}" if compiled.fallback else ""
    return f"{compiled.fallback_nodes} nodes on the CPU ({kinds or 'none'}{why})"
