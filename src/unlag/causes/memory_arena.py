"""A session without its memory arena, or without packed weights.

What it is: the session gives memory back to the system after each use, plans no memory, or packs weights anew at
every run, while the standard's session keeps what it has.

Why it costs: a large block of memory that comes from the system is mapped page by page when it is first written,
at every run: for a large activation that takes longer than the operator that fills it. Weights that are not packed at
load are brought into the kernel's order at each run, which is as much work as reading them once more and writing them.

How it is seen: the options arena, memory_pattern, session.use_env_allocators and session.disable_prepacking of the
two specs differ from the standard's towards less.

Remedy: open the session with the standard's memory settings. Its process then stays as large as its largest run.

Safety: exact.

Source: onnxruntime#14018, onnxruntime#11627 and onnxruntime!15316 (why the arena gets switched off); measured by
us: four elementwise operators on 16 MB tensors take 2 ms with the arena, 17 ms without; MiniLM takes 8.1 ms
with packed weights, 9.4 ms without.
"""

from __future__ import annotations

from collections.abc import Mapping

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.session_options import MEMORY, adopt, differing, said

_COSTLY = {
    "arena": "off",
    "memory_pattern": "off",
    "config.session.disable_prepacking": "1",
    "config.session.use_env_allocators": "1",
}
"""The value of each option that asks for less than the runtime does by itself."""


def _detect(evidence: Evidence) -> Finding:
    ours, theirs = (side.variant.options for side in (evidence.variant, evidence.standard))
    less = [name for name in differing(ours, theirs, MEMORY) if _is_less(ours, name)]
    if not less:
        same = sum(_is_less(ours, name) for name in MEMORY)
        return Finding(
            "ruled_out", f"0 of {len(MEMORY)} memory settings ask for less than the standard's; {same} alike"
        )
    return Finding("found", f"{len(less)} memory settings ask for less: {said(ours, theirs, less)}", tuple(less))


def _is_less(options: Mapping[str, str], name: str) -> bool:
    return options.get(name) == _COSTLY[name]


CAUSE = Cause(
    id="memory_arena",
    title="memory arena or weight packing off",
    dimension="hardware",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="adopt_memory_settings",
            title="open the session with the standard's memory settings",
            safety="EXACT",
            step=Step.SESSION,
            apply=lambda draft: adopt(draft, MEMORY),
        ),
    ),
)
