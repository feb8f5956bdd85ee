"""Stage 2: bring back what the graph lost, and fuse where fusing is measured to pay."""

from __future__ import annotations

from unlag.causes.contract import Step
from unlag.stages.fixed import Decision
from unlag.stages.plan import Plan, remedies_of
from unlag.stages.search import Workshop
from unlag.stages.winners import keep_winners


def restructure_graph(workshop: Workshop, current: Plan, budget: float) -> tuple[Plan, Decision]:
    """First what mends (function, passes, copies), then the fusions on top of it: they only match a mended graph."""
    remedies = remedies_of("graph")
    mending = [name for name, remedy in remedies.items() if remedy.step != Step.FUSE]
    fusing = [name for name, remedy in remedies.items() if remedy.step == Step.FUSE]
    candidates = {name: current.with_remedies(name) for name in mending}
    mended, first = keep_winners(workshop.within(0.0, 0.5), "graph, mending", current, candidates, budget)
    candidates = {name: mended.with_remedies(name) for name in fusing}
    fused, second = keep_winners(workshop.within(0.5, 1.0), "graph, fusing", mended, candidates, budget)
    return fused, Decision(first.kept + second.kept, first.rejected + second.rejected)
