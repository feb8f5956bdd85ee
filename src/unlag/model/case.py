"""A case: the question that one run of unlag answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from unlag.model.variant import Variant
from unlag.model.workload import Shape

Objective = Literal["latency", "throughput", "size"]
"""Time of one run, rows a second of the whole machine, or bytes on disk at no loss of time."""

Target = Literal["cpu", "gpu", "npu"]
"""Where the fixed model is to run."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Two variants, what to run on them, and what may be lost."""

    standard: Variant
    variant: Variant
    workload: str = "random"
    shapes: tuple[Shape, ...] = (Shape(1, 128),)
    dims: dict[str, int] = {}
    rounds: int = 5
    max_rounds: int = 25
    threads: int | None = None
    """Threads inside an operator; nothing means one for each usable core."""
    seed: int = 0
    accuracy_budget: float = 0.5
    """Points that a fixed model may lie below the standard."""
    strict_accuracy: bool = False
    """Whether the whole interval of the loss has to stay in the budget."""
    objective: Objective = "latency"
    any_runtime: bool = False
    """Whether the fixed model may run in another installed runtime than the standard."""
    target: Target = "cpu"
    patience_s: float = 120.0

    @property
    def alone(self) -> bool:
        """Whether there is no variant: the standard itself is to be made better."""
        return self.variant == self.standard
