"""A quick look at many models: times only, in few and short rounds.

Most fusions do little for most models. What promises something is searched properly afterwards, with accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from unlag.errors import UnlagError
from unlag.measure.bench import quick
from unlag.measure.contest import Contest
from unlag.model.variant import Variant
from unlag.stages.fixed import Rejected
from unlag.stages.plan import Plan
from unlag.stages.screen import TURN_MS, Screened
from unlag.stages.search import CURRENT, ONE_LAUNCH, Workshop

ROUNDS = 3


def glance(workshop: Workshop, what: str, current: Plan, candidates: Mapping[str, Plan]) -> Screened:
    """Time the candidates' models beside the current plan's; as many at once as fit into memory."""
    if not candidates:
        return Screened({})
    known = workshop.journal.read(Screened, "glance", what, current, candidates)
    if known is not None:
        return known
    names, most = list(candidates), max(1, workshop.at_once - 1)
    groups = [{name: candidates[name] for name in names[start : start + most]} for start in range(0, len(names), most)]
    parts = [
        _look(workshop.within(k / len(groups), (k + 1) / len(groups)), what, current, group)
        for k, group in enumerate(groups)
    ]
    seen = Screened(
        ratios={name: ratio for part in parts for name, ratio in part.ratios.items()},
        failed=tuple(rejected for part in parts for rejected in part.failed),
        unclear=tuple(name for part in parts for name in part.unclear),
    )
    workshop.journal.write(seen, "glance", what, current, candidates)
    return seen


def _look(workshop: Workshop, what: str, current: Plan, candidates: Mapping[str, Plan]) -> Screened:
    bench = workshop.bench
    models: dict[str, Variant] = {CURRENT: workshop.make(current)}
    failed = []
    for position, (name, plan) in enumerate(candidates.items()):
        bench.progress(f"{what}: building {name}", 0.5 * position / len(candidates))
        try:
            models[name] = workshop.make(plan)
        except UnlagError as error:
            failed.append(Rejected(name, error.message))
    protocol = msgspec.structs.replace(
        quick(bench.protocol, ROUNDS),
        launches=ONE_LAUNCH,
        min_turn_ms=min(TURN_MS, bench.protocol.min_turn_ms),
    )
    with bench.within(0.5, 1.0).contest(models, protocol) as contest:
        failed += [reason for name in list(models) if (reason := _fails(contest, name, workshop)) is not None]
        result = contest.measure()
    left = [name for name in models if name != CURRENT and name not in {rejected.remedy for rejected in failed}]
    ratios = {name: result.ratio(name, CURRENT) for name in left}
    return Screened(ratios, tuple(failed), () if result.quiet else tuple(ratios))


def _fails(contest: Contest, name: str, workshop: Workshop) -> Rejected | None:
    """Why a model can't be run, and out of the contest with it.

    Raises:
        UnlagError: the current plan's model can't be run.
    """
    try:
        contest.answers(name, [workshop.bench.workload.feed])
    except UnlagError as error:
        if name == CURRENT:
            raise
        contest.drop(name)
        return Rejected(name, f"it does not run: {error.message}")
    return None
