"""Remedies that change what they must not are no proof: each one's outputs are looked at before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unlag.causes.contract import Remedy
from unlag.errors import UnlagError
from unlag.measure.accuracy import agreement
from unlag.measure.bench import Bench
from unlag.measure.compare import STANDARD, VARIANT
from unlag.measure.contest import Contest
from unlag.model.workload import Feed, Workload
from unlag.proof.copies import Copy, CopyShelf, Suspect
from unlag.proof.times import Removed

EXACT_COSINE, EXACT_ERROR = 0.9995, 0.05
"""An EXACT remedy may move outputs by rounding (FP16 rounding is 1e-3 a step, and networks are deep), no further."""
CLOSE_LOSS = 0.01
"""A CLOSE remedy may take this much cosine to the standard's outputs, at most."""


ALL = "without all causes"


@dataclass(frozen=True)
class Rejection:
    """Why a remedy proves nothing."""

    cause: str
    reason: str


def check_remedies(
    bench: Bench, shelf: CopyShelf, suspects: Sequence[Suspect]
) -> tuple[list[Suspect], list[Rejection]]:
    """Sort out remedies that change nothing, fail, or change the outputs as they must not.

    A remedy that works alone is judged alone; one that only works after others, by leaving it out of all of them.
    """
    rejected: dict[str, str] = {}
    bench.progress("building repaired copies", 0.0)
    alone = {s.id: copy for s in suspects if (copy := _build(shelf, frozenset({s.id}), s, rejected)) is not None}
    working = frozenset(s.id for s in suspects if s.id not in rejected)
    everything = shelf.take(working)
    contenders = {STANDARD: bench.case.standard, VARIANT: bench.case.variant, ALL: everything.variant}
    pairs: dict[str, tuple[str, str]] = {}
    for suspect in suspects:
        if suspect.id in rejected:
            continue
        if alone[suspect.id].effective:
            contenders[suspect.id], pairs[suspect.id] = alone[suspect.id].variant, (VARIANT, suspect.id)
        elif suspect.id in everything.effective:
            rest = shelf.take(working - {suspect.id})
            contenders[suspect.id], pairs[suspect.id] = rest.variant, (suspect.id, ALL)
        else:
            rejected[suspect.id] = f"its remedy ({suspect.remedy.title}) found nothing to change"
    with bench.contest(contenders) as contest:
        judge = _Judge(contest, _feeds(bench.workload, suspects))
        for position, suspect in enumerate(s for s in suspects if s.id in pairs):
            bench.progress("checking what the remedies do to the outputs", position / len(pairs))
            reason = judge.fault(suspect.remedy, *pairs[suspect.id])
            if reason is not None:
                rejected[suspect.id] = reason
    kept = [suspect for suspect in suspects if suspect.id not in rejected]
    return kept, [Rejection(cause, reason) for cause, reason in rejected.items()]


def _feeds(workload: Workload, suspects: Sequence[Suspect]) -> Sequence[Feed]:
    """What all copies can run: where one of them takes the measured shape only, no sentences of other lengths."""
    feeds = workload.agreement or (workload.feed,)
    if not any(suspect.remedy.fixes_shape for suspect in suspects):
        return feeds
    wanted = {name: array.shape for name, array in workload.feed.items()}
    fitting = [feed for feed in feeds if {name: array.shape for name, array in feed.items()} == wanted]
    return fitting or (workload.feed,)


def _build(shelf: CopyShelf, removed: Removed, suspect: Suspect, rejected: dict[str, str]) -> Copy | None:
    """The copy, or nothing and a rejection: one remedy's fault must not take the others' proofs away."""
    try:
        return shelf.take(removed)
    except Exception as error:  # noqa: BLE001 - a remedy may raise anything
        rejected[suspect.id] = f"its remedy ({suspect.remedy.title}) raised {type(error).__name__}: {error}"
        return None


class _Judge:
    """Compares outputs with and without a remedy, and with the standard's; each contender runs once."""

    def __init__(self, contest: Contest, feeds: Sequence[Feed]) -> None:
        self._contest = contest
        self._feeds = feeds
        self._answers: dict[str, list[Feed]] = {}

    def fault(self, remedy: Remedy[Any], without: str, applied: str) -> str | None:
        """What is wrong with the remedy, from the contenders without and with it; or nothing."""
        try:
            standard, old, new = (self._answer(name) for name in (STANDARD, without, applied))
            change = agreement(old, new)
            before, after = agreement(standard, old).cosine, agreement(standard, new).cosine
        except UnlagError as error:
            return f"its repaired copy does not run: {error.message}"
        if remedy.safety == "EXACT" and (change.cosine < EXACT_COSINE or change.relative_error > EXACT_ERROR):
            return f"its remedy changed the outputs (relative error {change.relative_error:.2g}), which it must not"
        if remedy.safety == "CLOSE" and after < before - CLOSE_LOSS:
            cosines = f"cosine {before:.3f} before, {after:.3f} after"
            return f"its remedy takes the outputs away from the standard's ({cosines})"
        return None

    def _answer(self, name: str) -> list[Feed]:
        if name not in self._answers:
            try:
                self._answers[name] = self._contest.answers(name, self._feeds)
            finally:
                self._contest.retire(name)
            if name != STANDARD:
                self._answers[name] = [_of_standard(feed, self._answer(STANDARD)[0]) for feed in self._answers[name]]
        return self._answers[name]


def _of_standard(outputs: Feed, standard: Feed) -> Feed:
    """The outputs that the standard has too; all of them where their names differ. A remedy may drop the others."""
    return {name: outputs[name] for name in standard} if set(standard) <= set(outputs) else outputs
