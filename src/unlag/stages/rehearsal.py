"""Which remedies change a graph at all, found without writing or running a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unlag.model.case import Case
from unlag.model.draft import Observed, OnnxDraft
from unlag.stages.plan import EDITING, Plan, remedies_of, start


class Rehearsal:
    """Applies remedies to copies of the graph that a plan starts from. The copies share its weights."""

    def __init__(self, plan: Plan, case: Case, observed: Observed | None = None) -> None:
        """Read the models of the case; nothing of the plan counts but its precision and where it starts.

        Raises:
            UsageError: a model can't be read.
        """
        self._known = remedies_of(*EDITING)
        self._made = {frozenset[str](): start(plan, case, observed)}
        """Graphs by the remedies that were applied to them."""

    def counts(self, ids: Iterable[str]) -> dict[str, int]:
        """In how many places each of these remedies changes the graph, all applied one after the other."""
        wanted = set(ids)
        draft = _copy(self._made[frozenset()])
        return {name: remedy.apply(draft) for name, remedy in self._known.items() if name in wanted}

    def changes(self, beside: Iterable[str], candidate: str) -> bool:
        """Whether a remedy has something to do in a graph to which the others were applied."""
        others = frozenset(beside)
        if others not in self._made:
            draft = _copy(self._made[frozenset()])
            for name, remedy in self._known.items():
                if name in others:
                    remedy.apply(draft)
            self._made[others] = draft
        return self._known[candidate].apply(_copy(self._made[others])) > 0


def _copy(draft: OnnxDraft) -> OnnxDraft:
    return replace(draft, model=draft.model.clone(), options=dict(draft.options))
