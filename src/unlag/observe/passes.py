"""How far a runtime may rewrite the graph that it is given, by the spec's option."""

from __future__ import annotations

from unlag.model.variant import Variant
from unlag.observe.evidence import Evidence

OPTION = "optimization"
LEVELS = ("off", "basic", "extended", "layout", "all")
"""From the least to the most; a spec that names none means the last."""


def level_of(variant: Variant) -> str:
    """The level that the variant is opened with."""
    return variant.options.get(OPTION, LEVELS[-1])


def has_fewer_passes(evidence: Evidence) -> bool:
    """Whether the variant is opened with a lower level than the standard."""
    ours, theirs = level_of(evidence.variant.variant), level_of(evidence.standard.variant)
    return ours in LEVELS and theirs in LEVELS and LEVELS.index(ours) < LEVELS.index(theirs)
