"""Remedies that change what they must not are no proof: each one's outputs are looked at before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unlag.errors import UnlagError
from unlag.measure.accuracy import agreement
from unlag.measure.bench import Bench
from unlag.measure.compare import STANDARD, VARIANT
from unlag.measure.contest import Contest
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.proof.copies import CopyShelf, Suspect

EXACT_COSINE, EXACT_ERROR = 0.9995, 0.05
"""An EXACT remedy may move outputs by rounding (FP16 rounding is 1e-3 a step, and networks are deep), no further."""
CLOSE_LOSS = 0.01
"""A CLOSE remedy may take this much cosine to the standard's outputs, at most."""


@dataclass(frozen=True)
class Rejection:
    """Why a remedy proves nothing."""

    cause: str
    reason: str


def check_remedies(
    bench: Bench, shelf: CopyShelf, suspects: Sequence[Suspect]
) -> tuple[list[Suspect], list[Rejection]]:
    """Sort out remedies that change nothing, fail, or change the outputs as they must not."""
    rejected: dict[str, str] = {}
    alone: dict[str, Variant] = {}
    bench.progress("building repaired copies", 0.0)
    for suspect in suspects:
        try:
            copy = shelf.take(frozenset({suspect.id}))
        except Exception as error:  # noqa: BLE001 - one remedy's fault must not take the others' proofs away
            rejected[suspect.id] = f"its remedy ({suspect.remedy.title}) raised {type(error).__name__}: {error}"
        else:
            alone |= {suspect.id: copy.variant} if copy.effective else {}
    everything = shelf.take(frozenset(s.id for s in suspects if s.id not in rejected)).effective
    for suspect in suspects:
        if suspect.id not in {*alone, *everything, *rejected}:
            rejected[suspect.id] = f"its remedy ({suspect.remedy.title}) found nothing to change"
    with bench.contest({STANDARD: bench.case.standard, VARIANT: bench.case.variant, **alone}) as contest:
        judge = _Judge(contest, bench.workload.agreement or (bench.workload.feed,))
        for position, suspect in enumerate(suspects):
            bench.progress("checking what the remedies do to the outputs", position / len(suspects))
            reason = judge.fault(suspect) if suspect.id in alone else None
            if reason is not None:
                rejected[suspect.id] = reason
    kept = [suspect for suspect in suspects if suspect.id not in rejected]
    return kept, [Rejection(cause, reason) for cause, reason in rejected.items()]


class _Judge:
    """Compares each copy's outputs with the variant's and the standard's."""

    def __init__(self, contest: Contest, feeds: Sequence[Feed]) -> None:
        self._contest = contest
        self._feeds = feeds
        self._standard = contest.answers(STANDARD, feeds)
        self._variant = contest.answers(VARIANT, feeds)
        self._before = agreement(self._standard, self._variant).cosine

    def fault(self, suspect: Suspect) -> str | None:
        """What is wrong with the remedy, or nothing."""
        try:
            answers = self._contest.answers(suspect.id, self._feeds)
            kept = agreement(self._variant, answers)
            after = agreement(self._standard, answers).cosine
        except UnlagError as error:
            return f"its repaired copy does not run: {error.message}"
        finally:
            self._contest.retire(suspect.id)
        if suspect.remedy.safety == "EXACT" and (kept.cosine < EXACT_COSINE or kept.relative_error > EXACT_ERROR):
            return f"its remedy changed the outputs (relative error {kept.relative_error:.2g}), which it must not"
        if suspect.remedy.safety == "CLOSE" and after < self._before - CLOSE_LOSS:
            cosines = f"cosine {self._before:.3f} before, {after:.3f} after"
            return f"its remedy takes the outputs away from the standard's ({cosines})"
        return None
