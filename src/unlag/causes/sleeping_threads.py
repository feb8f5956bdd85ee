"""Threads that sleep between operators.

What it is: the session's idle threads sleep, or spin for a shorter time, while the standard's spin.

Why it costs: an operator of a small model takes some ten microseconds. A thread that sleeps has to be woken by the
system for each of them, which takes as long, so the work is done by one thread before the others are there. (What
spinning costs, others pay: programs that share the cores.)

How it is seen: the options that govern spinning differ from the standard's towards sleeping, and the session has
more than one thread.

Remedy: open the session with the standard's spinning.

Safety: exact.

Source: onnxruntime#13808, onnxruntime#10273, rf-detr!1456 (why it gets switched off), onnxruntime's page on thread
management; measured by us on two quiet cores: MiniLM takes 8.1 ms with spinning threads, 9.2 ms with sleeping ones.
Where other programs keep the cores busy it is the other way round: 79 and 37 ms at a load of 8.
"""

from __future__ import annotations

from collections.abc import Mapping

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.observe.evidence import Evidence
from unlag.observe.session_options import SPINNING, adopt, differing, said

_FOREVER_US = 10**12
"""Without a limit, threads spin for a time that the runtime counts in loops."""


def _detect(evidence: Evidence) -> Finding:
    ours, theirs = (side.variant.options for side in (evidence.variant, evidence.standard))
    threads = int(ours.get("threads", evidence.threads))
    found = differing(ours, theirs, SPINNING)
    if threads == 1 and ours.get("execution") != "parallel":
        return Finding("ruled_out", f"1 thread: there is none to wake; {len(found)} settings of spinning differ")
    if not found:
        return Finding("ruled_out", f"0 of {len(SPINNING)} settings of spinning differ from the standard's")
    settings = f"{len(found)} settings of spinning differ: {said(ours, theirs, found)}"
    if all(mine >= other for mine, other in zip(_spins_us(ours), _spins_us(theirs), strict=True)):
        return Finding("ruled_out", f"{settings}; threads spin for as long as the standard's or longer")
    return Finding("found", f"{settings}, with {threads} threads", tuple(found))


def _spins_us(options: Mapping[str, str]) -> tuple[int, int, int]:
    """How long threads spin within operators, between operators and after a run; microseconds, 0 where they sleep."""
    off = options.get("spinning") == "off"
    within = options.get("config.session.intra_op.allow_spinning", "0" if off else "1")
    between = options.get("config.session.inter_op.allow_spinning", "1")
    after = options.get("config.session.force_spinning_stop", "0")
    limit = options.get("config.session.intra_op.spin_duration_us", "")
    limit_us = int(limit) if limit.isdecimal() else _FOREVER_US
    return (
        0 if within == "0" else limit_us,
        0 if between == "0" else _FOREVER_US,
        0 if after == "1" else _FOREVER_US,
    )


CAUSE = Cause(
    id="sleeping_threads",
    title="threads that sleep between operators",
    dimension="parallel",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="adopt_spinning",
            title="let idle threads spin as the standard's do",
            safety="EXACT",
            step=Step.SESSION,
            apply=lambda draft: adopt(draft, SPINNING),
        ),
    ),
    knots={"thread_count": "with one thread there is none to wake"},
)
