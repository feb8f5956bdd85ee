"""Exit codes: scripts rely on them."""

from __future__ import annotations

from unlag.measure.comparison import Comparison, Verdict
from unlag.proof.explanation import Explanation
from unlag.report.record import Record
from unlag.stages.fixed import Fix

FINE = 0
"""The variant does not lag (for ``fix``: nor does the result)."""
LAGS = 1
"""It lags in speed or accuracy."""
WRONG_USAGE = 2
"""Wrong usage or unreadable input."""
INCONCLUSIVE = 3
OUR_FAULT = 4


def exit_code(record: Record, accuracy_budget: float = 0.0) -> int:
    """The code for a record; ``accuracy_budget`` is what a fix was allowed to lose."""
    if isinstance(record, Comparison):
        return _worst([row.verdict for row in (record, *record.other_shapes)])
    if isinstance(record, Explanation):
        return exit_code(record.comparison)
    if record.result is None:
        return _lost_on_npu(record, accuracy_budget)
    return _worst([_within_budget(row, accuracy_budget) for row in (record.result, *record.result.other_shapes)])


def _lost_on_npu(fix: Fix, budget: float) -> int:
    """Nothing is timed for an NPU: what counts is whether all of the model runs there, and what it loses."""
    npu = fix.npu
    scored = None if npu is None else npu.simulated
    lost = scored is not None and -scored.change.estimate > budget
    return LAGS if npu is None or not npu.whole or lost else FINE


def _within_budget(comparison: Comparison, budget: float) -> Verdict:
    change = comparison.accuracy_change
    if comparison.verdict.accuracy == "worse" and change is not None and -change.estimate <= budget:
        return Verdict(comparison.verdict.speed, "same")
    return comparison.verdict


def _worst(verdicts: list[Verdict]) -> int:
    if any(verdict.lags for verdict in verdicts):
        return LAGS
    if any(verdict.speed == "inconclusive" for verdict in verdicts):
        return INCONCLUSIVE
    return FINE
