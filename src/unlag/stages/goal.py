"""What a fix is to reach, and what it may lose on the way."""

from __future__ import annotations

import msgspec

from unlag.measure.statistics import Interval
from unlag.model.case import Case, Objective


class Goal(msgspec.Struct, frozen=True):
    """The objective of a search and its accuracy budget in points."""

    budget: float = 0.5
    objective: Objective = "latency"
    strict: bool = False
    """The whole interval of a loss has to stay in the budget, not only its estimate."""

    def counted(self, loss: Interval) -> float:
        """The points that count as lost."""
        return loss.high if self.strict else loss.estimate

    def allows(self, loss: Interval, beyond: float = 0.0) -> bool:
        """Whether a loss stays in the budget, counted from ``beyond`` points that are lost anyway."""
        return self.counted(loss) <= beyond + self.budget


def goal_of(case: Case) -> Goal:
    """What the case asks a fix for."""
    return Goal(case.accuracy_budget, case.objective, case.strict_accuracy)
