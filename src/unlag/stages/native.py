"""The three stages for models of another runtime's own format, by what that runtime itself offers.

Quantization: the standard's precision and the recipes of the runtime's tools. Graph: the remedies of its causes.
Hardware: its settings. ONNX files have stages of their own, which choose layer by layer.
"""

from __future__ import annotations

from unlag.model.variant import DEFAULT_RUNTIME
from unlag.runtimes.contract import Runtime, find_runtime
from unlag.stages.fixed import NOTHING, Decision, Kept
from unlag.stages.goal import Goal
from unlag.stages.plan import EDITING, Plan, remedies_of
from unlag.stages.screen import screen
from unlag.stages.search import Workshop, in_words
from unlag.stages.winners import choose_best, keep_winners

AS_STANDARD = "the standard's precision"


def is_native(workshop: Workshop) -> bool:
    """Whether the standard is a model of another runtime than ONNX Runtime."""
    return workshop.bench.case.standard.runtime != DEFAULT_RUNTIME


def choose_recipe(workshop: Workshop, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    """The standard's floats, or what the runtime's tools make of them, if that is measured to help."""
    standard = Plan(from_standard=True)
    candidates = {} if workshop.bench.case.alone else {AS_STANDARD: standard}
    for name in runtime_of(workshop).recipes():
        candidates[name] = Plan(from_standard=True, recipe=name)
    if not candidates:
        return current, NOTHING
    tried = workshop.search("recipes", current, candidates)
    best, rejected = choose_best(tried, goal)
    if best is None:
        return current, Decision((), rejected)
    trial = tried.trials[best]
    return trial.plan, Decision((Kept(best, in_words(trial)),), rejected)


def mend(workshop: Workshop, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    """The remedies of the runtime's own causes that change this model and are measured to help."""
    case = workshop.bench.case
    if not current.from_standard and case.variant.runtime != case.standard.runtime:
        return current, NOTHING  # the remedies are for the standard's kind of model
    known = remedies_of(*EDITING, runtime=case.standard.runtime)
    candidates = {name: current.with_remedies(name) for name, remedy in known.items() if not remedy.fixes_shape}
    return keep_winners(workshop, "graph", current, candidates, goal)


def fit_settings(
    workshop: Workshop, current: Plan, runtime: Runtime, goal: Goal, what: str = "hardware"
) -> tuple[Plan, Decision]:
    """The runtime's settings: a quick look at all, then a search, called ``what``, among the promising ones."""
    settings = runtime.settings(workshop.bench.threads)
    seen = screen(workshop.within(0.0, 0.5), current, settings)
    promising = {name: current.with_options(settings[name]) for name in seen.promising}
    plan, kept = keep_winners(workshop.within(0.5, 1.0), what, current, promising, goal, only_if_quiet=True)
    return plan, Decision((), seen.rejected) + kept


def runtime_of(workshop: Workshop) -> Runtime:
    """The standard's runtime."""
    return find_runtime(workshop.bench.case.standard.runtime)
