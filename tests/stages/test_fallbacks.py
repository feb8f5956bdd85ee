"""Never slower, never worse: what goes out where the last stage's model is not the best."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.stub_workshop import pm
from unlag.measure.statistics import Interval
from unlag.stages.final import STAGES, Final
from unlag.stages.fix import _fallbacks, _Staged
from unlag.stages.fixed import StageName
from unlag.stages.goal import Goal
from unlag.stages.plan import Plan

PLANS: dict[StageName, Plan] = {
    "baseline": Plan(),
    "quantization": Plan("dynamic_int8"),
    "graph": Plan("dynamic_int8", ("fuse",)),
    "hardware": Plan("dynamic_int8", ("fuse",), {"spinning": "off"}),
}


@dataclass(frozen=True)
class Timed:
    """What ``Final`` gives, from each stage's time over the standard's and its points lost."""

    times: dict[StageName, float]
    losses: dict[StageName, float] = field(default_factory=dict)

    def ratio(self, numerator: StageName, denominator: StageName | None = None) -> Interval:
        return pm(self.times[numerator] / (1.0 if denominator is None else self.times[denominator]), 0.005)

    def change(self, stage: StageName) -> Interval | None:
        return pm(-self.losses[stage], 0.0) if stage in self.losses else None

    allowed = Final.allowed
    best = Final.best


def goes_out(*times: float, losses: tuple[float, ...] = ()) -> list[Plan]:
    final = Timed(dict(zip(STAGES, times, strict=True)), dict(zip(STAGES, losses, strict=False)))
    return [plan for plan, _ in _fallbacks(_Staged(plans=dict(PLANS)), final, Goal())]


def test_the_last_stage_goes_out_where_nothing_is_faster():
    assert goes_out(2.0, 1.0, 0.8, 0.6) == []
    assert goes_out(2.0, 1.0, 0.6, 0.601) == [], "within what code alignment does"


def test_an_earlier_stage_goes_out_where_it_is_clearly_faster():
    assert goes_out(2.0, 1.0, 0.6, 0.8) == [PLANS["graph"]]
    assert goes_out(0.4, 1.0, 0.6, 0.8) == [PLANS["baseline"]], "never slower than what came in"


def test_a_stage_that_lost_too_much_does_not_go_out():
    assert goes_out(2.0, 0.9, 0.7, 0.6, losses=(0.0, 0.2, 0.3, 2.0)) == [PLANS["graph"]]
    assert goes_out(0.3, 0.9, 0.7, 0.6, losses=(4.0, 0.2, 0.3, 0.3)) == [], "a fast variant that is wrong"


def test_where_nothing_beats_the_standard_its_own_precision_goes_out():
    rewritten, plain = goes_out(2.0, 1.5, 1.3, 1.2)
    assert rewritten == Plan(remedies=("fuse",), options={"spinning": "off"}, from_standard=True)
    assert plain == Plan(from_standard=True)


def test_where_nothing_is_accurate_enough_the_standard_goes_out():
    assert goes_out(0.5, 0.5, 0.5, 0.5, losses=(4.0, 4.0, 4.0, 4.0))[-1] == Plan(from_standard=True)


def test_as_fast_as_the_standard_is_good_enough():
    assert goes_out(1.2, 1.1, 1.0, 1.005) == []
