"""Finding + Remedy -> Proof: every repaired copy timed against variant and standard, in the same rounds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from unlag.causes.contract import Cause, Finding
from unlag.errors import UnlagError
from unlag.measure.accuracy import Scored, agreement, score
from unlag.measure.bench import Bench, quick
from unlag.measure.compare import STANDARD, VARIANT, Compared
from unlag.measure.comparison import Comparison
from unlag.measure.contest import Contest
from unlag.measure.statistics import Floats, Interval, mean_interval
from unlag.model.variant import Variant
from unlag.model.workload import Evaluation
from unlag.proof import shapley
from unlag.proof.copies import CopyShelf, Removed, Suspect

MEMORY_BUDGET_BYTES = 2_000_000_000
"""What all processes of one batch may hold together; a batch has at least ``FEWEST_COPIES`` copies even so."""
FEWEST_COPIES = 2
MEMORY_SHARE = 0.5
"""Of what is available."""
COPY_GROWTH = 1.25
"""A repaired copy may hold its weights widened: expect so many times the larger contender's peak."""

EXACT_COSINE, EXACT_ERROR = 0.9995, 0.05
"""An EXACT remedy may move outputs by rounding (FP16 rounding is 1e-3 a step, and networks are deep), no further."""
CLOSE_LOSS = 0.01
"""A CLOSE remedy may take this much cosine to the standard's outputs, at most."""

KNOT_SHARE = 0.15
"""First-in and last-out that differ by more than 15 % of the larger one make a knot."""


@dataclass(frozen=True)
class Rejection:
    """Why a remedy proves nothing."""

    cause: str
    reason: str


@dataclass
class Wins:
    """Milliseconds won by each set of removed causes, round by round, and the scores of those that were evaluated.

    A win is the share that a copy saves of the variant's time in the same round, times ``variant_ms``: so batches that
    were measured at different times add up, even where the machine's speed has drifted in between.
    """

    variant_ms: float
    gap_ms: Floats
    won_ms: dict[Removed, Floats] = field(default_factory=dict)
    scores: dict[Removed, Scored] = field(default_factory=dict)
    standard_score: Scored | None = None

    def interval(self, coefficients: dict[Removed, float]) -> Interval:
        """Interval of a linear combination of wins."""
        arrays = [weight * self.won_ms[removed] for removed, weight in coefficients.items() if removed]
        if not arrays:
            return Interval(0.0, 0.0, 0.0)
        rounds = min(array.size for array in arrays)
        return mean_interval(np.sum([array[:rounds] for array in arrays], axis=0))


@dataclass(frozen=True)
class Proofs:
    """What the contest of the repaired copies says."""

    suspects: tuple[Suspect, ...]
    rejections: tuple[Rejection, ...]
    wins: Wins | None
    knot: frozenset[str]
    """Causes whose worths depend on each other; empty where all add up."""


def suspects_of(found: Iterable[tuple[Cause, Finding]]) -> tuple[Suspect, ...]:
    """The found causes that have a remedy which can be applied."""
    suspects = []
    for cause, _finding in found:
        remedy = next((r for r in cause.remedies if r.safety != "ADVICE"), None)
        if remedy is not None:
            suspects.append(Suspect(cause, remedy))
    return tuple(suspects)


def prove(bench: Bench, compared: Compared, suspects: Sequence[Suspect]) -> Proofs:
    """Measure each suspect first-in and last-out, and the knots between them in pairs."""
    if not suspects:
        return Proofs((), (), None, frozenset())
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
        shelf = CopyShelf(bench.case, suspects, Path(folder))
        bench.progress("building repaired copies", 0.0)
        kept, rejections = _check_remedies(bench.within(0.05, 0.2), shelf, suspects)
        if not kept:
            return Proofs((), tuple(rejections), None, frozenset())
        court = _Court(compared, shelf, kept)
        wins = court.first_and_last(bench.within(0.2, 0.75))
        knot = _knot(wins, kept, compared.comparison)
        if len(knot) > 2:
            court.measure_more(wins, shapley.needed_coalitions(knot), bench.within(0.75, 1.0))
        return Proofs(tuple(kept), tuple(rejections), wins, knot)


def _check_remedies(
    bench: Bench, shelf: CopyShelf, suspects: Sequence[Suspect]
) -> tuple[list[Suspect], list[Rejection]]:
    """Sort out remedies that change nothing, fail, or change the outputs as they must not."""
    kept: list[Suspect] = []
    rejections: list[Rejection] = []
    everything = shelf.take(frozenset(s.id for s in suspects))
    contenders: dict[str, Variant] = {STANDARD: bench.case.standard, VARIANT: bench.case.variant}
    for suspect in suspects:
        alone = shelf.take(frozenset({suspect.id}))
        if alone.effective:
            contenders[suspect.id] = alone.variant
        elif suspect.id not in everything.effective:
            rejections.append(Rejection(suspect.id, f"its remedy ({suspect.remedy.title}) found nothing to change"))
    dropped = {rejection.cause for rejection in rejections}
    with bench.contest(contenders) as contest:
        verdict = _output_judge(contest, bench)
        for position, suspect in enumerate(suspects):
            bench.progress("checking what the remedies do to the outputs", position / len(suspects))
            reason = verdict(suspect) if suspect.id in contenders else None
            if reason:
                rejections.append(Rejection(suspect.id, reason))
            elif suspect.id not in dropped:
                kept.append(suspect)
    return kept, rejections


def _output_judge(contest: Contest, bench: Bench) -> Callable[[Suspect], str | None]:
    feeds = bench.workload.agreement or (bench.workload.feed,)
    standard, variant = contest.answers(STANDARD, feeds), contest.answers(VARIANT, feeds)
    before = agreement(standard, variant).cosine

    def judge(suspect: Suspect) -> str | None:
        try:
            answers = contest.answers(suspect.id, feeds)
            kept = agreement(variant, answers)
            after = agreement(standard, answers).cosine
        except UnlagError as error:
            return f"its repaired copy does not run: {error.message}"
        finally:
            contest.retire(suspect.id)
        if suspect.remedy.safety == "EXACT" and (kept.cosine < EXACT_COSINE or kept.relative_error > EXACT_ERROR):
            return f"its remedy changed the outputs (relative error {kept.relative_error:.2g}), which it must not"
        if suspect.remedy.safety == "CLOSE" and after < before - CLOSE_LOSS:
            cosines = f"cosine {before:.3f} before, {after:.3f} after"
            return f"its remedy takes the outputs away from the standard's ({cosines})"
        return None

    return judge


class _Court:
    """Runs the copies against variant and standard, in batches that fit into memory."""

    def __init__(self, compared: Compared, shelf: CopyShelf, suspects: Sequence[Suspect]) -> None:
        self._scores = compared.scores
        self._variant_ms = compared.comparison.variant.latency_ms.median
        self._shelf = shelf
        self._suspects = suspects
        self._all = frozenset(s.id for s in suspects)
        self._accuracy_causes = {s.id for s in suspects if "accuracy" in s.cause.affects}
        self._copies_at_once = copies_at_once(compared.comparison)

    def first_and_last(self, bench: Bench) -> Wins:
        """The wins of each cause alone, of all but it, and of all."""
        sets = [frozenset({cause}) for cause in self._all]
        sets += [self._all - {cause} for cause in self._all]
        sets.append(self._all)
        wins = Wins(self._variant_ms, np.empty(0))
        wins.scores |= {frozenset(): self._scores[VARIANT]} if self._scores else {}
        wins.standard_score = self._scores.get(STANDARD)
        self.measure_more(wins, sets, bench)
        return wins

    def measure_more(self, wins: Wins, sets: Iterable[Removed], bench: Bench) -> None:
        """Measure those of the sets that are new, and add them to the wins."""
        wanted = [removed for removed in dict.fromkeys(sets) if removed and removed not in wins.won_ms]
        copies: dict[Removed, Variant] = {}
        for position, removed in enumerate(wanted):
            bench.progress(f"building repaired copies: {position + 1} of {len(wanted)}", 0.0)
            copy = self._shelf.take(removed)
            if copy.effective:
                copies.setdefault(copy.effective, copy.variant)
        new = [effective for effective in copies if effective not in wins.won_ms]
        for start in range(0, len(new), self._copies_at_once):
            stop = start + self._copies_at_once
            part = bench.within(start / len(new), min(1.0, stop / len(new)))
            self._measure_batch(wins, {e: copies[e] for e in new[start:stop]}, part)
        for removed in wanted:
            effective = self._shelf.take(removed).effective
            wins.won_ms[removed] = wins.won_ms[effective] if effective else np.zeros(max(wins.gap_ms.size, 1))
            if effective in wins.scores:
                wins.scores[removed] = wins.scores[effective]

    def _measure_batch(self, wins: Wins, copies: dict[Removed, Variant], bench: Bench) -> None:
        names = {"without " + "+".join(sorted(removed)): removed for removed in copies}
        case = bench.case
        contenders = {STANDARD: case.standard, VARIANT: case.variant}
        contenders |= {name: copies[removed] for name, removed in names.items()}
        with bench.contest(contenders, quick(bench.protocol, case.rounds)) as contest:
            result = contest.measure()
            variant_ms = result.medians_ms(VARIANT)
            gap_ms = (1 - result.medians_ms(STANDARD) / variant_ms) * wins.variant_ms
            wins.gap_ms = np.concatenate([wins.gap_ms, gap_ms])
            for name, removed in names.items():
                wins.won_ms[removed] = (1 - result.medians_ms(name) / variant_ms) * wins.variant_ms
            self._score_batch(wins, contest, names, bench.workload.evaluation)

    def _score_batch(
        self, wins: Wins, contest: Contest, names: dict[str, Removed], evaluation: Evaluation | None
    ) -> None:
        """Scores for accuracy causes' proofs only: each costs a pass over the data."""
        if evaluation is None or not self._accuracy_causes:
            return
        if wins.standard_score is None:
            raise UnlagError("a labelled workload was not scored by the comparison")
        rows = wins.standard_score.rows
        for name, removed in names.items():
            if self._decides_accuracy(removed):
                wins.scores[removed] = score(contest, name, evaluation, rows)

    def _decides_accuracy(self, removed: Removed) -> bool:
        alone = len(removed) == 1 and bool(removed & self._accuracy_causes)
        left = self._all - removed
        return alone or removed == self._all or (len(left) == 1 and bool(left & self._accuracy_causes))


def copies_at_once(comparison: Comparison) -> int:
    """How many repaired copies fit into memory beside standard and variant."""
    largest = max(comparison.standard.peak_memory_bytes, comparison.variant.peak_memory_bytes, 1)
    budget = min(MEMORY_BUDGET_BYTES, MEMORY_SHARE * psutil.virtual_memory().available)
    room = (budget - 2 * largest) / (COPY_GROWTH * largest)
    return max(FEWEST_COPIES, int(room))


def _knot(wins: Wins, suspects: Sequence[Suspect], comparison: Comparison) -> frozenset[str]:
    """Causes that win clearly more or less alone than last."""
    everything = frozenset(s.id for s in suspects)
    floor_ms = noise_ms(comparison)
    knotted = set()
    for cause in everything:
        first = wins.interval({frozenset({cause}): 1.0})
        last = wins.interval(last_out(cause, everything))
        differs = first.minus(last)
        largest = max(abs(first.estimate), abs(last.estimate))
        clear = not differs.low <= 0 <= differs.high
        if clear and abs(differs.estimate) > max(2 * floor_ms, KNOT_SHARE * largest):
            knotted.add(cause)
    return frozenset(knotted) if len(knotted) > 1 else frozenset()


def last_out(cause: str, everything: Removed) -> dict[Removed, float]:
    """Coefficients of what the cause costs when it alone is left in the repaired model."""
    coefficients = {everything: 1.0}
    if everything - {cause}:
        coefficients[everything - {cause}] = -1.0
    return coefficients


def noise_ms(comparison: Comparison) -> float:
    """Milliseconds that the noise floor, at least ±1 %, is of the standard's time."""
    noise = comparison.noise
    return max(noise.high - 1, 1 - noise.low, 0.01) * comparison.standard.latency_ms.median
