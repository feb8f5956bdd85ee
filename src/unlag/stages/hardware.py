"""Stage 3: how the runtime uses this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unlag.errors import Missing, UnlagError
from unlag.measure.bench import Bench
from unlag.measure.placement import read_nodes
from unlag.model.variant import Variant
from unlag.observe.inside_session import InsideSession, look_inside
from unlag.observe.session_options import DISABLE
from unlag.stages.fixed import NOTHING, Decision, Kept, Rejected
from unlag.stages.fixed_shapes import fix_shapes
from unlag.stages.goal import Goal
from unlag.stages.plan import Plan
from unlag.stages.screen import NOT_QUIET, Screened, Settings, screen
from unlag.stages.search import Workshop, in_words
from unlag.stages.winners import choose_best, keep_winners

CPU_SETTINGS: dict[str, dict[str, str]] = {
    "spinning=off": {"spinning": "off"},
    "arena=off": {"arena": "off"},
    "memory_pattern=off": {"memory_pattern": "off"},
    "prepacking=off": {"config.session.disable_prepacking": "1"},
    "denormals as zero": {"config.session.set_denormal_as_zero": "1"},
    "dynamic block": {"config.session.dynamic_block_base": "4"},
    "operators side by side": {"execution": "parallel", "inter_threads": "2"},
}
"""Session settings whose worth depends on the machine. dynamic_block_base 4 is the runtime's own recommendation.

Others get their name from their options when they are tried, such as ``threads=2``; see ``options_of``.
"""

_WITH_THREADS = frozenset({"spinning=off", "dynamic block"})
_PARALLEL = "operators side by side"
_LAYOUT_LEVEL = "optimization=extended"

LAYOUT_PASSES = frozenset({"NchwcTransformer", "NhwcTransformer", "ConvAddActivationFusion"})
"""What the highest level of optimization adds."""

LEFT_ALONE = frozenset({
    "ConstantFolding", "ConstantSharing", "CommonSubexpressionElimination", "ReshapeFusion", "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit", "FreeDimensionOverrideTransformer", "QDQFinalCleanupTransformer",
    "InsertCastTransformer", "RemoveDuplicateCastTransformer", "CastFloat16Transformer", "MemcpyTransformer",
})  # fmt: skip
"""Passes that only take work away, or that the runtime needs."""
_GROUPS = "RuleBasedTransformer"
"""Rules of a level are logged together, under a name that ends so."""

MOST_PASSES = 3
"""So many at most are switched off together."""


def fit_hardware(workshop: Workshop, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    """Fixed shapes, then session settings: a quick look at all, and a search among those that promise something."""
    plan, shapes = fix_shapes(workshop.within(0.0, 0.2), current, goal)
    model = workshop.make(plan)
    inside = _inside(workshop.bench, model)
    settings, ruled_out = settings_to_try(workshop.bench, inside, goal)
    without = passes_to_try(inside, model.options)
    seen = screen(workshop.within(0.25, 0.6), plan, {**settings, **without})
    decision = shapes + Decision((), (*ruled_out, *seen.rejected))
    plan, passes = _switch_off(workshop.within(0.6, 0.8), plan, _off(seen, without), goal)
    promising = {name: plan.with_options(settings[name]) for name in seen.promising if name in settings}
    plan, kept = keep_winners(workshop.within(0.8, 1.0), "hardware", plan, promising, goal, only_if_quiet=True)
    return plan, decision + passes + kept


def _inside(bench: Bench, model: Variant) -> InsideSession:
    """What the runtime makes of the model; a profiler that fails takes nothing else away."""
    try:
        return look_inside(bench.within(0.2, 0.25), model)
    except UnlagError as error:
        return InsideSession(Missing(error.message), Missing(error.message))


def options_of(name: str) -> Mapping[str, str]:
    """The session options that a setting of that name sets; none, where it is no setting."""
    if name in CPU_SETTINGS:
        return CPU_SETTINGS[name]
    parts = [part.partition("=") for part in name.split(",")]
    return {key: value for key, _, value in parts} if all(value for _, _, value in parts) else {}


def settings_to_try(bench: Bench, inside: InsideSession, goal: Goal) -> tuple[Settings, tuple[Rejected, ...]]:
    """Settings that could matter for this model on this machine, and those that can't, with the reason."""
    tried: dict[str, Mapping[str, str]] = {}
    ruled_out: list[Rejected] = []
    for name in _thread_counts(bench, goal):
        tried[name] = options_of(name)
    for name, options in CPU_SETTINGS.items():
        reason = _pointless(name, bench, inside)
        if reason:
            ruled_out.append(Rejected(name, reason))
        else:
            tried[name] = options
    if isinstance(inside.passes, Missing) or LAYOUT_PASSES & set(inside.passes):
        tried[_LAYOUT_LEVEL] = options_of(_LAYOUT_LEVEL)
    pinned = _node_by_node(bench)
    if isinstance(pinned, Rejected):
        ruled_out.append(pinned)
    else:
        tried[pinned] = options_of(pinned)
    return tried, tuple(ruled_out)


def passes_to_try(inside: InsideSession, options: Mapping[str, str]) -> Settings:
    """Each optimizer pass that acted on this model, switched off beside those that are off already."""
    if isinstance(inside.passes, Missing):
        return {}
    return {
        name: options_of(name)
        for acted in inside.passes
        if acted not in LEFT_ALONE and not acted.endswith(_GROUPS)
        for name in [_disabling(options.get(DISABLE, ""), acted)]
    }


def _disabling(already: str, *passes: str) -> str:
    return f"{DISABLE}={'+'.join(filter(None, (already, *passes)))}"


def _off(seen: Screened, without: Settings) -> list[str]:
    """Names of promising settings that switch a pass off, the best first."""
    return [name for name in seen.promising if name in without]


def _switch_off(workshop: Workshop, current: Plan, names: list[str], goal: Goal) -> tuple[Plan, Decision]:
    """The best pass off, the best two, the best three: what one pass makes, the next one may work on."""
    if not names:
        return current, NOTHING
    candidates: dict[str, Plan] = {}
    value = ""
    for name in names[:MOST_PASSES]:
        value = _united(value, options_of(name)[DISABLE])
        together = f"{DISABLE}={value}"
        candidates[together] = current.with_options(options_of(together))
    tried = workshop.search("passes", current, candidates)
    if not tried.quiet:
        return current, Decision((), (*tried.failed, *(Rejected(name, NOT_QUIET) for name in tried.trials)))
    best, rejected = choose_best(tried, goal)
    if best is None:
        return current, Decision((), rejected)
    trial = tried.trials[best]
    return trial.plan, Decision((Kept(best, in_words(trial)),), rejected)


def _united(one: str, other: str) -> str:
    """Both lists of passes, each pass once."""
    return "+".join(dict.fromkeys(filter(None, (*one.split("+"), *other.split("+")))))


def _thread_counts(bench: Bench, goal: Goal) -> Iterable[str]:
    """Fewer threads than there are; none where the user has said how many, or copies are to share the cores."""
    if bench.case.threads is not None or goal.objective == "throughput":
        return ()
    most, physical = bench.threads, bench.host.cpu.physical_cores
    doublings = {1 << k for k in range(most.bit_length())}
    counts = doublings | {3 * most // 4} | (set() if isinstance(physical, Missing) else {physical})
    return [f"threads={count}" for count in sorted(counts) if 0 < count < most]


def _pointless(name: str, bench: Bench, inside: InsideSession) -> str:
    """Why a setting can't matter; empty where it can."""
    if name in _WITH_THREADS and bench.threads == 1:
        return "1 thread: there are no others to wait for or to share with"
    if name != _PARALLEL:
        return ""
    if bench.threads == 1:
        return "1 thread: nothing can run side by side"
    if isinstance(inside.width, Missing):
        return f"not tried: {inside.width.reason}"
    return "" if inside.width > 1 else "at most 1 of the heavy operators can run at a time: each needs the one before"


def _node_by_node(bench: Bench) -> str | Rejected:
    """Threads on the cores of one NUMA node, or why that can't matter."""
    name = "threads on one NUMA node"
    nodes = [node for cores in read_nodes() if (node := sorted(set(cores) & set(bench.cores)))]
    if len(nodes) < 2:
        known = f"{len(nodes)} NUMA node" if nodes else "no NUMA nodes are known"
        return Rejected(name, f"{known}: no core is nearer to the memory than another")
    cores = max(nodes, key=len)
    others = ";".join(str(core + 1) for core in cores[1:])  # the runtime counts cores from 1; the first thread is ours
    return f"threads={len(cores)},config.session.intra_op_thread_affinities={others}"
