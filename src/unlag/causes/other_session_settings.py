"""A session that is opened with other settings than the standard's.

What it is: the variant's spec sets threads, spinning, the memory arena, execution order or a session configuration
entry that the standard's does not have, or has with another value.

Why it costs: the model is not what differs. Fewer threads leave cores idle, sleeping threads have to be woken for every
operator, and an allocator without an arena asks the system for memory at every run.

How it is seen: the options of the two specs differ (the level of graph optimizations has a cause of its own).

Remedy: open the session with the standard's settings.

Safety: exact, up to the order in which threads add.

Source: onnxruntime#8385, onnxruntime#13808, onnxruntime#10273, onnxruntime#14018; its page on thread
management.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.draft import Draft
from unlag.observe.evidence import Evidence
from unlag.observe.passes import OPTION

ELSEWHERE = frozenset({OPTION, "provider"})
"""Options that other causes look at, or that decide what can run at all."""


def _detect(evidence: Evidence) -> Finding:
    ours, theirs = (side.variant.options for side in (evidence.variant, evidence.standard))
    names = sorted({*ours, *theirs} - ELSEWHERE)
    differing = [name for name in names if ours.get(name) != theirs.get(name)]
    if not differing:
        return Finding("ruled_out", f"0 of {len(names)} session settings differ from the standard's")
    said = ", ".join(f"{n}={ours.get(n, 'default')} (standard: {theirs.get(n, 'default')})" for n in differing)
    return Finding("found", f"{len(differing)} session settings differ: {said}", tuple(differing))


def _adopt(draft: Draft) -> int:
    """Take over the standard's settings."""
    kept = {name: value for name, value in draft.options.items() if name in ELSEWHERE}
    wanted = kept | {name: value for name, value in draft.standard_options.items() if name not in ELSEWHERE}
    changed = len(dict(set(draft.options.items()) ^ set(wanted.items())))
    draft.options.clear()
    draft.options.update(wanted)
    return changed


CAUSE = Cause(
    id="other_session_settings",
    title="session opened with other settings",
    dimension="parallel",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="adopt_session_settings",
            title="open the session with the standard's settings",
            safety="EXACT",
            step=Step.SESSION,
            apply=_adopt,
        ),
    ),
)
