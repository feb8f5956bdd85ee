"""Stage 2: bring back what the graph lost, and fuse where fusing is measured to pay."""

from __future__ import annotations

from unlag.causes.contract import Remedy, Step
from unlag.model.draft import OnnxDraft
from unlag.stages.fixed import Decision, Rejected
from unlag.stages.fusing import UNFUSING, Fusing
from unlag.stages.goal import Goal
from unlag.stages.plan import EDITING, Plan, remedies_of
from unlag.stages.rehearsal import Rehearsal
from unlag.stages.search import Workshop
from unlag.stages.winners import keep_winners

FUSING = frozenset({Step.FUSE, Step.JOIN})

NOTHING_TO_CHANGE = "nothing to change in this model"


def restructure_graph(workshop: Workshop, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    """First what mends (function, passes, copies), then the fusions on top of it: they only match a mended graph.

    What changes nothing in this graph is told from the graph alone. Remedies of quantization are tried where the plan
    stays quantized; in any other there is nothing left for them to change.
    """
    rehearsal = Rehearsal(current, workshop.bench.case, workshop.observed)
    mended, first = _mend(workshop.within(0.0, 0.4), rehearsal, current, goal)
    fused, second = _fuse(workshop.within(0.4, 1.0), rehearsal, mended, goal)
    return fused, first + second


def editing() -> dict[str, Remedy[OnnxDraft]]:
    """Remedies that change the graph; hardware's session options are another stage's."""
    here = remedies_of("graph")
    return {
        name: remedy
        for name, remedy in remedies_of(*EDITING).items()
        if not remedy.fixes_shape and (name in here or remedy.step != Step.SESSION)
    }


def _mend(workshop: Workshop, rehearsal: Rehearsal, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    mending = [name for name, remedy in editing().items() if remedy.step not in FUSING]
    at_work = [name for name in mending if rehearsal.changes(current.remedies, name)]
    candidates = {name: current.with_remedies(name) for name in at_work}
    plan, decision = keep_winners(workshop, "graph, mending", current, candidates, goal)
    return plan, _idle(mending, at_work) + decision


def _fuse(workshop: Workshop, rehearsal: Rehearsal, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    fusing = [name for name, remedy in editing().items() if remedy.step in FUSING]
    needs = {name: what for name in fusing if (what := _needs(rehearsal, current, name)) is not None}
    unfused = rehearsal.changes(current.remedies, UNFUSING)
    if len(needs) < 2 and not unfused:
        candidates = {name: current.with_remedies(*what, name) for name, what in needs.items()}
        plan, decision = keep_winners(workshop, "graph, fusing", current, candidates, goal)
    else:
        plan, decision = Fusing(workshop, rehearsal, current, goal).search(needs, unfused=unfused)
    return plan, _idle(fusing, needs) + decision


def _idle(names: list[str], at_work: list[str] | dict[str, tuple[str, ...]]) -> Decision:
    return Decision((), tuple(Rejected(name, NOTHING_TO_CHANGE) for name in names if name not in at_work))


def _needs(rehearsal: Rehearsal, current: Plan, name: str) -> tuple[str, ...] | None:
    """The fusion that one needs before it has anything to do: none, one, or nothing where not even that helps."""
    if rehearsal.changes(current.remedies, name):
        return ()
    earlier = [other for other, remedy in editing().items() if remedy.step == Step.FUSE and other != name]
    return next(((other,) for other in earlier if rehearsal.changes((*current.remedies, other), name)), None)
