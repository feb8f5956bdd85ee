"""Stage 1: which precision pays on this machine, at what loss."""

from __future__ import annotations

import msgspec

from unlag.stages.fixed import Decision, Kept, Rejected
from unlag.stages.plan import PRECISIONS, Plan
from unlag.stages.search import Round, Trial, Workshop, best_of, in_words
from unlag.stages.winners import near_enough

FLOAT = "float32"


def tune_quantization(workshop: Workshop, current: Plan, budget: float) -> tuple[Plan, Decision]:
    """Try every precision as it is today, and keep the fastest whose own loss is within the budget.

    A candidate's own loss is counted from the float32 candidate, since a variant may be wrong for other reasons, which
    later stages mend.
    """
    candidates: dict[str, Plan] = {
        precision: msgspec.structs.replace(current, precision=precision)
        for precision in PRECISIONS
        if precision != "as_is"
    }
    tried = workshop.search("quantization", current, candidates)
    eligible = {name: trial for name, trial in tried.trials.items() if _affordable(trial, tried, budget)}
    needed = tried.current_loss is not None and tried.current_loss > budget
    helping = {
        name: trial
        for name, trial in eligible.items()
        if trial.faster or (trial.more_accurate and (needed or not trial.slower))
    }
    best = best_of(helping) if helping else None
    rejected = [*tried.failed]
    for name, trial in tried.trials.items():
        if name == best:
            continue
        rejected.append(Rejected(name, _reason(name, trial, best, eligible)))
    if best is None:
        return current, Decision((), tuple(rejected))
    kept = Kept(best, f"{PRECISIONS[tried.trials[best].plan.precision]}: {in_words(tried.trials[best])}")
    return tried.trials[best].plan, Decision((kept,), tuple(rejected))


def _affordable(trial: Trial, tried: Round, budget: float) -> bool:
    plain = tried.trials.get(FLOAT)
    if trial.loss is None:
        return near_enough(trial, max(tried.best_cosine, plain.cosine if plain is not None else 0.0))
    plain_loss = plain.loss if plain is not None else None
    losses = [loss for loss in (plain_loss, tried.current_loss) if loss is not None]
    return trial.loss <= max(0.0, min(losses, default=0.0)) + budget


def _reason(name: str, trial: Trial, best: str | None, eligible: dict[str, Trial]) -> str:
    if name not in eligible:
        lost = f"cosine {trial.cosine:.3f}" if trial.loss is None else f"{trial.loss:.2f} points below the standard"
        return f"{in_words(trial)}; {lost}, more than the budget allows beyond what float32 loses here"
    if not trial.faster:
        return f"no measured gain: {in_words(trial)}"
    return f"{in_words(trial)}; {best} is faster, or as fast and more accurate or smaller"
