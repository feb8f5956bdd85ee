"""Stage 3: how the runtime uses this machine."""

from __future__ import annotations

from unlag.stages.fixed import Decision
from unlag.stages.plan import Plan
from unlag.stages.search import Workshop
from unlag.stages.winners import keep_winners

CPU_SETTINGS: dict[str, dict[str, str]] = {
    "threads=1": {"threads": "1"},
    "spinning=off": {"spinning": "off"},
    "arena=off": {"arena": "off"},
    "memory_pattern=off": {"memory_pattern": "off"},
    "denormals as zero": {"config.session.set_denormal_as_zero": "1"},
    "dynamic block": {"config.session.dynamic_block_base": "4"},
    "optimization=extended": {"optimization": "extended"},
}
"""Session settings whose worth depends on the machine. dynamic_block_base 4 is the runtime's own recommendation."""


def fit_hardware(workshop: Workshop, current: Plan, budget: float) -> tuple[Plan, Decision]:
    """Try each setting alone, keep those that are measured to win."""
    candidates = {name: current.with_options(options) for name, options in CPU_SETTINGS.items()}
    if workshop.bench.threads == 1:
        del candidates["threads=1"]
    return keep_winners(workshop, "hardware", current, candidates, budget, only_if_quiet=True)
