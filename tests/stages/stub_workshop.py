"""A workshop whose searches are scripted: what a stage makes of measurements, without measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Self

import msgspec

from unlag.measure.statistics import Interval
from unlag.stages.fixed import Rejected
from unlag.stages.plan import Plan
from unlag.stages.search import Round, Trial


def pm(estimate: float, half: float = 0.01) -> Interval:
    return Interval(estimate, estimate - half, estimate + half)


def trial(
    ratio: float,
    loss: float | None = 0.0,
    change: float | None = None,
    *,
    half: float = 0.01,
    loss_half: float = 0.0,
    cosine: float = 1.0,
    size_bytes: int = 100,
    plan: Plan | None = None,
) -> Trial:
    """``change`` is in points against the current plan, ± 0.1; nothing means that the outputs are the current ones.

    ``loss`` is in points below the standard, ± ``loss_half``.
    """
    gain = Interval(0.0, 0.0, 0.0) if change is None else pm(change, 0.1)
    lost = None if loss is None else pm(loss, loss_half)
    return Trial(plan or Plan(), pm(ratio, half), None if loss is None else gain, lost, cosine, size_bytes)


Script = Callable[[str, Plan, Mapping[str, Plan]], Mapping[str, Trial]]


@dataclass
class StubWorkshop:
    """``search`` hands out the scripted trials of those candidates that it is asked for."""

    trials: Mapping[str, Trial]
    failed: tuple[Rejected, ...] = ()
    current_loss: float | None = 0.0
    current_cosine: float = 1.0
    best_cosine: float = 1.0
    quiet: bool = True
    current_size_bytes: int = 100
    searches: list[tuple[str, Plan, dict[str, Plan]]] = field(default_factory=list)
    discarded: list[Plan] = field(default_factory=list)
    bench: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(threads=2))

    def within(self, begin: float, end: float) -> Self:
        assert 0 <= begin <= end <= 1
        return self

    def search(self, what: str, current: Plan, candidates: Mapping[str, Plan]) -> Round:
        self.searches.append((what, current, dict(candidates)))
        found = {
            name: msgspec.structs.replace(t, plan=plan)
            for name, plan in candidates.items()
            if (t := self.trials.get(name)) is not None
        }
        return Round(
            found,
            self.failed,
            None if self.current_loss is None else pm(self.current_loss, 0.0),
            self.current_cosine,
            self.best_cosine,
            self.current_size_bytes,
            self.quiet,
        )

    def discard(self, plans: Iterable[Plan]) -> None:
        self.discarded += plans
