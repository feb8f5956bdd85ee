"""Too few threads, or more than there are cores.

What it is: the variant's session has fewer threads than the standard's, more than this process has cores, or another
way to schedule operators.

Why it costs: with too few threads, cores are idle. With more than there are cores, threads that work wait for
threads that were taken off a core, and each operator ends when its last thread ends. Operators run side by side have a
second pool, which fights with the first one for the same cores.

How it is seen: the options threads, inter_threads, execution and the affinities of the two specs, a thread count
that is not given being the bench's, against the cores that affinity and quota leave to this process.

Remedy: open the session with the standard's thread settings.

Safety: exact, up to the order in which threads add.

Source: onnxruntime#8385, onnxruntime#14715, onnxruntime#14018, onnxruntime#29510, onnxruntime#10273, onnxruntime's page
on thread management; measured by us: MiniLM takes 8 ms with two threads on two cores, 15 ms with one, and 16 ms or
more with four.
"""

from __future__ import annotations

from collections.abc import Mapping

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.session_options import THREADS, adopt

AFFINITIES = "config.session.intra_op_thread_affinities"


def _detect(evidence: Evidence) -> Finding:
    ours, theirs = (side.variant.options for side in (evidence.variant, evidence.standard))
    cores = evidence.host.usable_cores
    count, standard = (_threads(options, evidence.threads) for options in (ours, theirs))
    facts = f"{_said(ours, count)}, the standard {_said(theirs, standard)}, on {cores} usable cores"
    if not count or not standard:
        return Finding("not_checked", f"how many threads the bench gave is not known: {facts}")
    faults = [
        *(["too few"] if count < min(standard, cores) else []),
        *(["more than there are cores"] if count > max(standard, cores) else []),
        *(["another schedule"] if _schedule(ours) != _schedule(theirs) else []),
    ]
    if not faults:
        return Finding("ruled_out", facts)
    where = tuple(sorted(name for name in THREADS if ours.get(name) != theirs.get(name)))
    return Finding("found", f"{' and '.join(faults)}: {facts}", where)


def _threads(options: Mapping[str, str], default: int) -> int:
    return int(options.get("threads", default))


def _schedule(options: Mapping[str, str]) -> tuple[str, ...]:
    """How operators are placed on threads; threads between operators matter only where operators run side by side."""
    execution = options.get("execution", "sequential")
    between = options.get("inter_threads", "") if execution == "parallel" else ""
    return execution, between, options.get(AFFINITIES, "")


def _said(options: Mapping[str, str], threads: int) -> str:
    execution, between, affinities = _schedule(options)
    parts = [f"{threads} threads, {execution}"]
    parts += [f"{between} between operators"] if between else []
    parts += [f"pinned to {affinities}"] if affinities else []
    return " ".join(parts)


CAUSE = Cause(
    id="thread_count",
    title="too few or too many threads",
    dimension="parallel",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="adopt_threads",
            title="open the session with the standard's threads",
            safety="EXACT",
            step=Step.SESSION,
            apply=lambda draft: adopt(draft, THREADS),
        ),
    ),
    knots={"sleeping_threads": "more threads have to be woken"},
)
