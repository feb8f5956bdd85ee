"""A quick look at many session settings: times only, in few and short rounds.

Most settings do nothing for most models. What promises something here is searched properly afterwards, with accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from unlag.errors import UnlagError
from unlag.measure.bench import quick
from unlag.measure.contest import Contest
from unlag.measure.statistics import SMALLEST_EFFECT, Interval
from unlag.stages.fixed import Rejected
from unlag.stages.plan import Plan
from unlag.stages.search import CURRENT, ONE_LAUNCH, Workshop, percent

ROUNDS = 3
TURN_MS = 100.0
"""Half of a usual turn."""

NOT_QUIET = "other processes ran on the cores while it was timed, so settings can't be judged"

Settings = Mapping[str, Mapping[str, str]]
"""Session options by the name of the setting."""


class Screened(msgspec.Struct, frozen=True):
    """What a quick look saw."""

    ratios: dict[str, Interval]
    """Time with the setting over time without it."""
    failed: tuple[Rejected, ...] = ()
    unclear: tuple[str, ...] = ()
    """Settings that were timed while something else ran on the cores."""

    @property
    def promising(self) -> tuple[str, ...]:
        """Settings that may win more than code alignment does, the best first."""
        ranked = sorted(self.ratios, key=lambda name: self.ratios[name].estimate)
        clear = (name for name in ranked if name not in self.unclear)
        return tuple(name for name in clear if self.ratios[name].estimate < 1 - SMALLEST_EFFECT)

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """All others, and why."""
        others = (name for name in self.ratios if name not in self.promising)
        return (*self.failed, *(Rejected(name, self._reason(name)) for name in others))

    def _reason(self, name: str) -> str:
        return NOT_QUIET if name in self.unclear else f"no gain in a quick look: {percent(self.ratios[name])}"


def screen(workshop: Workshop, current: Plan, settings: Settings) -> Screened:
    """Time the current plan's model with each setting beside it without; as many at once as fit into memory."""
    if not settings:
        return Screened({})
    known = workshop.journal.read(Screened, "screen", current, settings)
    if known is not None:
        return known
    names, most = list(settings), max(1, workshop.at_once - 1)
    groups = [{name: settings[name] for name in names[start : start + most]} for start in range(0, len(names), most)]
    parts = [
        _look(workshop.within(k / len(groups), (k + 1) / len(groups)), current, group) for k, group in enumerate(groups)
    ]
    seen = Screened(
        ratios={name: ratio for part in parts for name, ratio in part.ratios.items()},
        failed=tuple(rejected for part in parts for rejected in part.failed),
        unclear=tuple(name for part in parts for name in part.unclear),
    )
    workshop.journal.write(seen, "screen", current, settings)
    return seen


def _look(workshop: Workshop, current: Plan, settings: Settings) -> Screened:
    bench, model = workshop.bench, workshop.make(current)
    contenders = {CURRENT: model, **{name: model.with_options(**options) for name, options in settings.items()}}
    protocol = msgspec.structs.replace(
        quick(bench.protocol, ROUNDS),
        launches=ONE_LAUNCH,
        min_turn_ms=min(TURN_MS, bench.protocol.min_turn_ms),
    )
    with bench.contest(contenders, protocol) as contest:
        failed = [rejected for name in settings if (rejected := _fails(contest, name, workshop)) is not None]
        result = contest.measure()
    left = settings.keys() - {rejected.remedy for rejected in failed}
    ratios = {name: result.ratio(name, CURRENT) for name in settings if name in left}
    return Screened(ratios, tuple(failed), () if result.quiet else tuple(ratios))


def _fails(contest: Contest, name: str, workshop: Workshop) -> Rejected | None:
    """Why a setting can't be used, and out of the contest with it."""
    try:
        contest.answers(name, [workshop.bench.workload.feed])
    except UnlagError as error:
        contest.drop(name)
        return Rejected(name, f"it does not run: {error.message}")
    return None
