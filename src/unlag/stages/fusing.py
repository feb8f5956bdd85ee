"""The search for the fusions that pay: each alone, all together, and all but one; then the best with accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unlag.causes.slow_residual_fusion import FUSION, OPTION
from unlag.measure.statistics import SMALLEST_ACCURACY_EFFECT, SMALLEST_EFFECT, Interval
from unlag.stages.fixed import Decision, Kept, Rejected
from unlag.stages.glance import glance
from unlag.stages.goal import Goal
from unlag.stages.hardware import options_of
from unlag.stages.plan import Plan
from unlag.stages.rehearsal import Rehearsal
from unlag.stages.search import Trial, Workshop, best_of, in_words, percent
from unlag.stages.winners import acceptable, helps, keep_winners

RIVALS: tuple[tuple[str, ...], ...] = (
    ("fuse_attention", "fuse_heads"),
    ("fuse_gelu", "standard_gelu", "approximate_gelu"),
)
"""Fusions of the same nodes: one of each at most goes into a plan."""

FUSED_BY_RUNTIME = "fuse_skip_layer_norm"
UNFUSING = "disable_residual_fusion"
"""The remedy that keeps the runtime from a fusion of its own. What other fusions are worth depends on it, so it is
tried among them; as a session option it costs no model."""

FINALISTS = 3
"""So many plans are measured with their accuracy in the end."""

Combination = tuple[str, ...]
"""Ids of fusions, in the order in which they are named."""

Ratios = dict[Combination, Interval]


@dataclass(frozen=True)
class Fusing:
    """Fusions on top of a mended plan."""

    workshop: Workshop
    rehearsal: Rehearsal
    current: Plan
    goal: Goal

    def search(self, needs: Mapping[str, Combination], *, unfused: bool = False) -> tuple[Plan, Decision]:
        """Try these fusions, each behind what it needs; a fusion that only helps beside others is found as well.

        With ``unfused``, the runtime's own fusion of residuals is tried switched off as well.
        """
        alone = {name: (*what, name) for name, what in needs.items()}
        rivals = RIVALS
        if unfused:
            off = self._switched_off()
            alone[off] = (off,)
            rivals = (*RIVALS, (FUSED_BY_RUNTIME, off))
        ratios, failed = self._look(0.0, 0.4, "graph, fusing", alone.values())
        measured = {name: ratios[ids] for name, ids in alone.items() if ids in ratios}
        members = _members(measured, rivals)
        together = self._combinations(alone, measured, members)
        more, failed_together = self._look(0.4, 0.7, "graph, fusing together", together)
        ratios |= more
        finalists = self._finalists(ratios, together)
        plan, kept, failed_in_the_end = self._choose(finalists, alone, measured)
        self.workshop.discard(p for ids in ratios if (p := self.plan(ids)) != plan)
        idle = [_why_not(name, ratio, kept) for name, ratio in measured.items()]
        rejected = {part.remedy: part for part in (*idle, *failed, *failed_together, *failed_in_the_end)}
        named_here = {part.remedy for part in kept}
        return plan, Decision(kept, tuple(part for name, part in rejected.items() if name not in named_here))

    def plan(self, ids: Combination) -> Plan:
        """The current plan with these fusions, and with the session options among them."""
        remedies = [name for name in ids if not options_of(name)]
        options = {key: value for name in ids for key, value in options_of(name).items()}
        return self.current.with_remedies(*remedies).with_options(options)

    def _switched_off(self) -> str:
        """The session option, beside the passes that are switched off already, as one text."""
        already = self.workshop.make(self.current).options.get(OPTION, "")
        return f"{OPTION}={'+'.join(filter(None, (already, FUSION)))}"

    def _plans(self, combinations: Iterable[Combination]) -> dict[str, Plan]:
        return {named(ids): self.plan(ids) for ids in combinations}

    def _look(
        self, begin: float, end: float, what: str, combinations: Iterable[Combination]
    ) -> tuple[Ratios, tuple[Rejected, ...]]:
        listed = list(dict.fromkeys(combinations))
        seen = glance(self.workshop.within(begin, end), what, self.current, self._plans(listed))
        return {ids: seen.ratios[named(ids)] for ids in listed if named(ids) in seen.ratios}, seen.failed

    def _combinations(
        self, alone: Mapping[str, Combination], measured: Mapping[str, Interval], members: list[str]
    ) -> list[Combination]:
        """All members together, those that gained something alone, and all but one."""
        gaining = [name for name in members if measured[name].estimate < 1]
        chosen = [members, gaining, *([other for other in members if other != name] for name in members)]
        found = [self._at_work(ids for name in names for ids in alone[name]) for names in chosen]
        known = set(alone.values())
        return [ids for ids in dict.fromkeys(found) if len(ids) > 1 and ids not in known]

    def _at_work(self, ids: Iterable[str]) -> Combination:
        """Without those that have nothing left to do beside the others."""
        listed = tuple(dict.fromkeys(ids))
        remedies = [name for name in listed if not options_of(name)]
        counts = self.rehearsal.counts((*self.current.remedies, *remedies))
        return tuple(name for name in listed if counts.get(name, 1))

    def _finalists(self, ratios: Ratios, together: list[Combination]) -> list[Combination]:
        """The fastest in the quick look that may gain something, and all together without those that aren't missed."""
        hopeful = [ids for ids in ratios if ratios[ids].low < 1 - SMALLEST_EFFECT]
        ranked = sorted(hopeful, key=lambda ids: ratios[ids].estimate)[:FINALISTS]
        whole = max(together, key=len, default=())
        if whole not in ratios or not ranked:
            return ranked
        missed = [ids for ids in together if len(ids) == len(whole) - 1 and ids in ratios]
        useless = {
            name
            for ids in missed
            if ratios[ids].estimate <= ratios[whole].estimate + SMALLEST_EFFECT
            for name in whole
            if name not in ids
        }
        lean = self._at_work(name for name in whole if name not in useless)
        return list(dict.fromkeys([*ranked, *([lean] if lean else [])]))

    def _choose(
        self, finalists: list[Combination], alone: Mapping[str, Combination], measured: Mapping[str, Interval]
    ) -> tuple[Plan, tuple[Kept, ...], tuple[Rejected, ...]]:
        """The best finalist with its accuracy; each fusion for itself where one of them costs too much of that."""
        if not finalists:
            return self.current, (), ()
        tried = self.workshop.within(0.7, 0.9).search("graph, fused", self.current, self._plans(finalists))
        winners = {name: trial for name, trial in tried.trials.items() if helps(trial, tried, self.goal)}
        if winners:
            new = self._fewest(winners, [ids for ids in finalists if named(ids) in winners])
            best = winners[named(new)]
            kept = tuple(Kept(name, _worth(measured.get(name), in_words(best), len(new))) for name in new)
            return best.plan, kept, tried.failed
        if all(acceptable(trial, tried, self.goal) for trial in tried.trials.values()):
            return self.current, (), tried.failed
        promising = [name for name, ratio in measured.items() if ratio.estimate < 1]
        candidates = {name: self.plan(alone[name]) for name in promising}
        workshop = self.workshop.within(0.9, 1.0)
        plan, decision = keep_winners(workshop, "graph, fusing one by one", self.current, candidates, self.goal)
        return plan, decision.kept, (*tried.failed, *decision.rejected)

    def _fewest(self, winners: Mapping[str, Trial], finalists: list[Combination]) -> Combination:
        """The best finalist, or one of fewer fusions that is as fast but for code alignment, and as accurate."""
        best = winners[best_of(winners, self.goal)]
        lost = 0.0 if best.loss is None else self.goal.counted(best.loss)

        def is_as_good(trial: Trial) -> bool:
            accurate = trial.loss is None or self.goal.counted(trial.loss) <= lost + SMALLEST_ACCURACY_EFFECT
            return accurate and trial.ratio.estimate <= best.ratio.estimate + SMALLEST_EFFECT

        as_good = [ids for ids in finalists if is_as_good(winners[named(ids)])]
        return min(as_good, key=lambda ids: (len(ids), winners[named(ids)].ratio.estimate))


def named(ids: Combination) -> str:
    """What a combination is called."""
    return " + ".join(ids)


def _members(measured: Mapping[str, Interval], rivals: tuple[tuple[str, ...], ...]) -> list[str]:
    """The best of each group of rivals, and all that have none, but for those that are clearly slower alone."""
    beaten = {
        name
        for group in rivals
        for name in group
        if name in measured
        and any(measured[other].estimate < measured[name].estimate for other in group if other in measured)
    }
    return [name for name, ratio in measured.items() if name not in beaten and ratio.low <= 1 + SMALLEST_EFFECT]


def _worth(alone: Interval | None, together: str, count: int) -> str:
    if count == 1:
        return together
    return together + (" together" if alone is None else f" together, {percent(alone)} alone in a quick look")


def _why_not(name: str, ratio: Interval, kept: tuple[Kept, ...]) -> Rejected:
    beside = f"; nothing more beside {', '.join(part.remedy for part in kept)}" if kept else ""
    return Rejected(name, f"in a quick look {percent(ratio)}{beside}")
