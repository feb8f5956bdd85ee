"""Stage 1: which numbers pay on this machine, layer by layer, at what loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from unlag.errors import Missing
from unlag.measure.statistics import SMALLEST_EFFECT, Interval
from unlag.stages.fixed import Decision, Kept, Rejected
from unlag.stages.goal import Goal
from unlag.stages.layer_facts import SAME_KERNEL, LayerFacts
from unlag.stages.look_at_layers import LayersOf
from unlag.stages.plan import Plan
from unlag.stages.schemes import PRECISIONS, SCHEMES, Family, Precision
from unlag.stages.search import CURRENT, SAME_SIZE, Round, Trial, Workshop, best_of, in_words
from unlag.stages.shortlist import (
    Choice,
    backed_off,
    by_layer,
    counted,
    exact_codes,
    not_worth_trying,
    promising,
    why_not_paying,
    worth_trying,
)
from unlag.stages.winners import UNLABELED_LOSS, near_enough, points_lost

FLOAT = "float32"
BY_LAYER = "layer by layer"

WHOLE_MODELS = 4
"""Whole models in uniform schemes that the first search tries."""
AGAIN = 3
"""And that the search on the finished graph tries."""

_INTEGER: tuple[Family, ...] = ("dynamic", "static", "blocks")

SHARES = (1.0, 0.3, 0.1)
"""Shares of the harm that the budget has room for, at which too harmful a choice is tried again."""
ROOM = 0.8
"""Share of the budget that a choice is backed off to: an estimate needs room."""


class LooksAtLayers(Protocol):
    """What is measured of the layers of one plan, each thing when it is asked for."""

    def times(self) -> LayerFacts: ...  # noqa: D102 - see LayersOf
    def errors(self, facts: LayerFacts, schemes: Sequence[Precision]) -> LayerFacts: ...  # noqa: D102
    def gains(self) -> dict[str, float]: ...  # noqa: D102
    def in_integers(self) -> bool: ...  # noqa: D102


Look = Callable[[Workshop, Plan], LooksAtLayers]


def tune_quantization(workshop: Workshop, current: Plan, goal: Goal, look: Look = LayersOf) -> tuple[Plan, Decision]:
    """Find each layer's scheme: by single layers what to try, by whole models what to keep.

    A candidate's own loss is counted from the float32 candidate, since a variant may be wrong for other reasons, which
    later stages mend.
    """
    plan, decision, facts = _tune(workshop, current, goal, look, "quantization", WHOLE_MODELS)
    known = [*(part.remedy for part in decision.kept), *(part.remedy for part in decision.rejected)]
    return plan, decision + Decision((), (*not_worth_trying(facts, known), *_no_float16(workshop)))


def retune_quantization(workshop: Workshop, current: Plan, goal: Goal, look: Look = LayersOf) -> tuple[Plan, Decision]:
    """Ask the same of a finished graph: what lost too much on a broken one may do, and fused layers are other layers.

    Gives the current plan and a decision that keeps nothing where that is the best still.
    """
    plan, decision, _facts = _tune(workshop, current, goal, look, "quantization, again", AGAIN)
    return plan, decision


def _tune(  # noqa: PLR0913, PLR0917 - a search has these parts
    workshop: Workshop, current: Plan, goal: Goal, look: Look, what: str, most: int
) -> tuple[Plan, Decision, LayerFacts]:
    layers = look(workshop.within(0.0, 0.3), current)
    facts, choices = _choices(layers, goal, most)
    if workshop.bench.host.has_float16_arithmetic is True:
        choices["float16"] = Choice("float16")
    candidates = {name: current.with_precision(choice.precision, choice.layers) for name, choice in choices.items()}
    candidates = {name: plan for name, plan in candidates.items() if plan != current}
    tried = workshop.within(0.3, 0.7).search(what, current, candidates)
    ambitious = _too_harmful(tried, current, goal)
    if ambitious is not None:
        more = _careful_ones(tried, ambitious, goal, facts, layers)
        again = workshop.within(0.7, 1.0).search(f"{what}, backing off", current, more)
        tried = msgspec.structs.replace(
            tried, trials={**tried.trials, **again.trials}, failed=(*tried.failed, *again.failed)
        )
    best = _best(tried, facts, goal)
    chosen = current if best is None else tried.trials[best].plan
    workshop.discard(trial.plan for trial in tried.trials.values() if trial.plan != chosen)
    decision = _decision(facts, tried, best, goal)
    notes = () if _is_integer(chosen, layers) else _why_floats(facts, tried)
    return chosen, decision + Decision((), (), notes), facts


def _is_integer(plan: Plan, layers: LooksAtLayers) -> bool:
    """Whether the plan's model computes in integers."""
    if plan.precision == "as_is":
        return layers.in_integers()
    return any(SCHEMES[name].family in _INTEGER for name in (plan.precision, *plan.layers.values()))


def _choices(layers: LooksAtLayers, goal: Goal, most: int) -> tuple[LayerFacts, dict[str, Choice]]:
    """Whole models to measure, from what single layers take and lose."""
    facts = layers.times()
    choices: dict[str, Choice] = {FLOAT: Choice("float32")}
    near = promising(facts, goal)
    if not near:
        return facts, choices
    facts = layers.errors(facts, list(dict.fromkeys(["weight_int8", *near])))
    uniform = worth_trying(facts, goal, most)
    twins = {name: SAME_KERNEL[name] for name in uniform if name in SAME_KERNEL}
    facts = layers.errors(facts.with_twins(twins), [twin for same in twins.values() for twin in same])
    exact = [exact_codes(facts, name, twins.get(name, ())) for name in uniform]
    choices |= {name: Choice(name) for name in exact}
    if exact:
        mixed = by_layer(facts, exact[0])
        if mixed is not None:
            choices[BY_LAYER] = mixed
    return facts, choices


def _too_harmful(tried: Round, current: Plan, goal: Goal) -> tuple[str, Trial] | None:
    """The fastest candidate that loses too much, if it is clearly faster than all that don't.

    The current plan is one of them where it has integers itself: chosen on a graph on which its loss could not be told.
    """
    known = dict(tried.trials)
    if current.precision != "as_is" and SCHEMES[current.precision].family in _INTEGER:
        still, loss = Interval(1.0, 1.0, 1.0), tried.current_loss
        known[CURRENT] = Trial(current, still, None, loss, tried.current_cosine, tried.current_size_bytes)
    fine = [trial for trial in known.values() if _affordable(trial, tried, goal)]
    harmful = {name: trial for name, trial in known.items() if not _affordable(trial, tried, goal)}
    if not harmful:
        return None
    fastest = min(harmful, key=lambda name: harmful[name].ratio.estimate)
    best = min((trial.ratio.estimate for trial in fine), default=math.inf)
    is_faster = harmful[fastest].ratio.high < min(best, 1.0) or (fastest == CURRENT and best > 1.0)
    return (fastest, harmful[fastest]) if is_faster else None


def _careful_ones(
    tried: Round, ambitious: tuple[str, Trial], goal: Goal, facts: LayerFacts, layers: LooksAtLayers
) -> dict[str, Plan]:
    """The harmful candidate with its worst layers made more careful, at several shares of the harm."""
    name, trial = ambitious
    room, lost = _room(trial, tried, goal)
    choice = Choice(trial.plan.precision, trial.plan.layers)
    facts = layers.errors(facts, [choice.precision, *dict.fromkeys(choice.layers.values())])
    gains = layers.gains()
    found: dict[str, Plan] = {}
    for share in SHARES:
        made = backed_off(facts, choice, gains, share * ROOM * room / lost if lost > 0 else 0.0)
        plan = trial.plan.with_precision(made.precision, made.layers)
        if plan not in found.values() and plan != trial.plan:
            changed = sum(made.layers.get(part) != choice.layers.get(part) for part in made.layers)
            found[f"{trial.plan.precision if name == CURRENT else name}, {changed} weights more careful"] = plan
    return found


def _room(trial: Trial, tried: Round, goal: Goal) -> tuple[float, float]:
    """What may be lost and what the trial loses, in points, or in cosine where there are no labels."""
    if trial.loss is None:
        return UNLABELED_LOSS, max(_best_cosine(tried) - trial.cosine, 0.0)
    return goal.budget, goal.counted(trial.loss) - _lost_anyway(tried)


def _best(tried: Round, facts: LayerFacts, goal: Goal) -> str | None:
    """The best that helps and is affordable. On a broken graph single layers tell better than points what is exact."""
    fine = {name: trial for name, trial in tried.trials.items() if _affordable(trial, tried, goal)}
    helping = {name: trial for name, trial in fine.items() if _helps(trial, tried, goal)}
    if not helping:
        return None
    best = best_of(helping, goal)
    if not _is_broken(tried, goal) or goal.objective == "size":
        return best
    fastest = min(helping.values(), key=lambda trial: trial.ratio.estimate)
    tied = {name: trial for name, trial in helping.items() if trial.ratio.estimate <= fastest.ratio.high}
    exact = {name: facts.error(t.plan.precision) for name, t in tied.items() if not t.plan.layers}
    return min(exact, key=lambda name: exact[name], default=best)


def _helps(trial: Trial, tried: Round, goal: Goal) -> bool:
    """Faster, or smaller where that counts, or more accurate; then it may be slower if the budget needs that."""
    no_cost = trial.ratio.estimate <= 1 + SMALLEST_EFFECT
    smaller = goal.objective == "size" and no_cost and trial.size_bytes * SAME_SIZE < tried.current_size_bytes
    if trial.faster or ((smaller or trial.more_accurate) and not trial.slower):
        return True
    if trial.loss is None or tried.current_loss is None or goal.allows(tried.current_loss):
        return False
    return trial.more_accurate or goal.allows(trial.loss)


def _affordable(trial: Trial, tried: Round, goal: Goal) -> bool:
    """Whether the budget has room for what the trial loses by itself.

    On a graph that is broken for other reasons, points go up and down with every rounding. There a scheme is refused
    only if it surely loses too much; it is asked again on the finished graph.
    """
    if trial.loss is None:
        return near_enough(trial, _best_cosine(tried))
    anyway = _lost_anyway(tried)
    if _is_broken(tried, goal):
        return trial.loss.low <= anyway + goal.budget
    return goal.allows(trial.loss, beyond=anyway)


def _is_broken(tried: Round, goal: Goal) -> bool:
    """Whether float32 arithmetic itself is outside the budget on this graph."""
    return _lost_anyway(tried) > goal.budget


def _best_cosine(tried: Round) -> float:
    plain = tried.trials.get(FLOAT)
    return max(tried.best_cosine, plain.cosine if plain is not None else 0.0)


def _lost_anyway(tried: Round) -> float:
    """Points that are lost for other reasons than a candidate's own."""
    plain = tried.trials.get(FLOAT)
    plain_loss = None if plain is None else plain.loss
    losses = [loss.estimate for loss in (plain_loss, tried.current_loss) if loss is not None]
    return max(0.0, min(losses, default=0.0))


def _decision(facts: LayerFacts, tried: Round, best: str | None, goal: Goal) -> Decision:
    rejected = [*tried.failed, *(r for r in facts.failed if r.remedy not in tried.trials)]
    rejected += [Rejected(name, _reason(t, best, tried, goal)) for name, t in tried.trials.items() if name != best]
    chosen = None if best is None else tried.trials[best]
    if chosen is None or best is None:
        return Decision((), tuple(rejected))
    words = counted(facts.layers, chosen.plan.precision, chosen.plan.layers) if facts.layers else ""
    kept = Kept(best, f"{words or PRECISIONS[chosen.plan.precision]}: {in_words(chosen)}")
    return Decision((kept,), tuple(rejected))


def _no_float16(workshop: Workshop) -> list[Rejected]:
    native = workshop.bench.host.has_float16_arithmetic
    if native is True:
        return []
    why = f"whether it has any is not known: {native.reason}" if isinstance(native, Missing) else "this CPU has none"
    return [Rejected("float16", f"not tried without float16 arithmetic: {why}")]


def _why_floats(facts: LayerFacts, tried: Round) -> tuple[str, ...]:
    """Why no integer arithmetic is used, in numbers."""
    why = why_not_paying(facts)
    integer = [trial for trial in tried.trials.values() if SCHEMES[trial.plan.precision].family in _INTEGER]
    if why is None:
        return ()
    if not integer:
        return (f"integer arithmetic does not pay on this machine: {why}",)
    best = min(integer, key=lambda trial: trial.ratio.estimate)
    return (f"integer arithmetic is not used: {why}; the best whole model with it takes {in_words(best)}",)


def _reason(trial: Trial, best: str | None, tried: Round, goal: Goal) -> str:
    if not _affordable(trial, tried, goal):
        lost = f"cosine {trial.cosine:.3f}" if trial.loss is None else points_lost(trial.loss, goal)
        return f"{in_words(trial)}; {lost}, more than the budget allows beyond what float32 loses here"
    if not trial.faster:
        return f"no measured gain: {in_words(trial)}"
    return f"{in_words(trial)}; {best} is faster, or as fast and more accurate or smaller"
