"""Keep what wins: candidates tried one by one, then the winners together. One search serves graph and hardware."""

from __future__ import annotations

from collections.abc import Mapping

from unlag.measure.statistics import Interval
from unlag.stages.fixed import NOTHING, Decision, Kept, Rejected
from unlag.stages.goal import Goal
from unlag.stages.plan import Plan
from unlag.stages.search import SAME_SIZE, Round, Trial, Workshop, best_of, in_words

TOGETHER = "all of them together"

UNLABELED_LOSS = 0.02
"""Cosine to the standard's outputs that all stages together may lose where no labels measure accuracy: dynamic INT8 of
a sentence encoder loses 0.012 on its token states and 0.1 points on its task."""

UNLABELED_WINNERS = 0.99
"""Share of rows that must keep the standard's winner, where outputs have classes and there are no labels."""


def keep_winners(  # noqa: PLR0913 - a search has these parts
    workshop: Workshop,
    what: str,
    current: Plan,
    candidates: Mapping[str, Plan],
    goal: Goal,
    *,
    only_if_quiet: bool = False,
) -> tuple[Plan, Decision]:
    """Try each candidate on the current plan; put together those that are measured to help, if together they do.

    ``only_if_quiet`` keeps none where something else ran on the cores: one thread looks like a gain beside a busy core.
    """
    if not candidates:
        return current, NOTHING
    tried = workshop.within(0.0, 0.6).search(what, current, candidates)
    if only_if_quiet and not tried.quiet:
        why = "other processes ran on the cores while it was timed, so settings can't be judged"
        return current, Decision((), (*tried.failed, *(Rejected(name, why) for name in tried.trials)))
    winners = {name: trial for name, trial in tried.trials.items() if helps(trial, tried, goal)}
    rejected = list(tried.failed)
    rejected += [why_not(name, trial, tried, goal) for name, trial in tried.trials.items() if name not in winners]
    workshop.discard(trial.plan for name, trial in tried.trials.items() if name not in winners)
    if len(winners) < 2:
        plan = next((trial.plan for trial in winners.values()), current)
        return plan, Decision(_kept(winners), tuple(rejected))
    plan, decision = _together(workshop, what, current, winners, goal)
    return plan, Decision((), tuple(rejected)) + decision


def _together(
    workshop: Workshop, what: str, current: Plan, winners: Mapping[str, Trial], goal: Goal
) -> tuple[Plan, Decision]:
    """All winners at once beside the fastest single one that is as accurate."""
    merged = current
    for trial in winners.values():
        merged = merge(merged, trial.plan)
    single = best_of(winners, goal)
    tried = workshop.within(0.6, 1.0).search(
        f"{what}, together", current, {TOGETHER: merged, single: winners[single].plan}
    )
    together = tried.trials.get(TOGETHER)
    alone = tried.trials.get(single)
    beaten = together is not None and alone is not None and _beats(alone, together, goal)
    if together is None or beaten or not acceptable(together, tried, goal):
        rejected = tuple(
            Rejected(name, f"alone {in_words(trial)}, but {single} alone is better than all together")
            for name, trial in winners.items()
            if name != single
        )
        return winners[single].plan, Decision(_kept({single: winners[single]}), rejected)
    return merged, Decision(_kept(winners), ())


def _beats(single: Trial, together: Trial, goal: Goal) -> bool:
    """Whether a single winner is clearly faster than all together, and not less accurate."""
    if together.loss is None or single.loss is None:
        return single.ratio.high < together.ratio.low
    return goal.counted(together.loss) >= goal.counted(single.loss) and single.ratio.high < together.ratio.low


def merge(one: Plan, other: Plan) -> Plan:
    """Both plans' remedies and options; the other's precision."""
    merged = one.with_remedies(*other.remedies).with_options(other.options)
    return merged.with_precision(other.precision, other.layers)


def choose_best(tried: Round, goal: Goal) -> tuple[str | None, tuple[Rejected, ...]]:
    """The best of the trials that help, where only one of them can be kept; and all others, with the reason."""
    winners = {name: trial for name, trial in tried.trials.items() if helps(trial, tried, goal)}
    best = best_of(winners, goal) if winners else None
    rejected = list(tried.failed)
    for name, trial in tried.trials.items():
        if best is None or name not in winners:
            rejected.append(why_not(name, trial, tried, goal))
        elif name != best:
            rejected.append(beaten(name, trial, best))
    return best, tuple(rejected)


def helps(trial: Trial, tried: Round, goal: Goal) -> bool:
    """Whether a trial is worth keeping.

    It is faster; or smaller, where size is the objective; or more accurate, at no cost in time unless the current plan
    is outside the budget.
    """
    if not acceptable(trial, tried, goal):
        return False
    needed = tried.current_loss is not None and not goal.allows(tried.current_loss)
    smaller = goal.objective == "size" and trial.size_bytes * SAME_SIZE < tried.current_size_bytes
    better = smaller or trial.more_accurate
    return trial.faster or (better and not trial.slower) or (trial.more_accurate and needed)


def acceptable(trial: Trial, tried: Round, goal: Goal) -> bool:
    """Within the budget of the standard, or at least not below where the current plan is already."""
    if trial.loss is None or tried.current_loss is None:
        return near_enough(trial, tried.best_cosine)
    return goal.allows(trial.loss) or goal.counted(trial.loss) <= goal.counted(tried.current_loss)


def near_enough(trial: Trial, best_cosine: float) -> bool:
    """Whether outputs stay with the standard's, where no labels say what a difference is worth."""
    same_winners = trial.top1 is None or trial.top1 >= UNLABELED_WINNERS
    return trial.cosine >= best_cosine - UNLABELED_LOSS and same_winners


def why_not(name: str, trial: Trial, tried: Round, goal: Goal) -> Rejected:
    """The reason in numbers."""
    if not acceptable(trial, tried, goal):
        winners = "" if trial.top1 is None else f", {trial.top1:.0%} of the winners the same"
        lost = f"cosine {trial.cosine:.3f}{winners}"
        if trial.loss is not None:
            lost = points_lost(trial.loss, goal)
        return Rejected(name, f"{in_words(trial)}; {lost}, outside the budget")
    if trial.ratio.high < 1:
        return Rejected(name, f"the gain is within the ±1 % that code alignment alone gives: {in_words(trial)}")
    return Rejected(name, f"no measured gain: {in_words(trial)}")


def beaten(name: str, trial: Trial, winner: str) -> Rejected:
    """The reason for one that would have helped, where another one is kept instead."""
    return Rejected(name, f"{in_words(trial)}; {winner} is as good or better")


def points_lost(loss: Interval, goal: Goal) -> str:
    """A loss in words, with what counts of it."""
    far = f" (up to {loss.high:.2f})" if goal.strict else ""
    return f"{loss.estimate:.2f}{far} points below the standard"


def _kept(winners: Mapping[str, Trial]) -> tuple[Kept, ...]:
    return tuple(Kept(name, in_words(trial)) for name, trial in winners.items())
