"""Who runs when: seeded, interleaved rounds. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a contest."""

    rounds: int = 5
    """Undisturbed rounds that are wanted."""
    max_rounds: int = 15
    """Rounds after which the contest ends, decided or not."""
    launches: int = 2
    """Processes that each contender gets, one after the other: memory layout differs from launch to launch."""
    min_runs: int = 5
    min_turn_ms: float = 200.0
    """A turn is a burst of at least so many runs and so long."""
    warmup_limit_s: float = 3.0
    patience_s: float = 120.0
    """A contender that is silent for longer counts as hung."""
    seed: int = 0

    @property
    def rounds_per_launch(self) -> int:
        """Rounds after which every contender is started anew."""
        return max(1, -(-self.rounds // self.launches))


def orders(contenders: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Endless rounds: every contender once, in seeded random order."""
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    while True:
        order = list(range(contenders))
        rng.shuffle(order)
        yield tuple(order)
