"""Finding + Remedy -> Proof: every repaired copy timed against variant and standard, in the same rounds."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import msgspec

from unlag.causes.contract import Cause, Finding
from unlag.errors import UnlagError
from unlag.measure.accuracy import Scored, score
from unlag.measure.bench import Bench
from unlag.measure.compare import STANDARD, VARIANT, Compared
from unlag.measure.comparison import Comparison
from unlag.measure.contest import ContestResult
from unlag.measure.schedule import Protocol
from unlag.model.case import Case
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.proof import shapley, times
from unlag.proof.accuracy_knots import accuracy_knot
from unlag.proof.capacity import contenders_at_once
from unlag.proof.copies import CopyShelf, Suspect
from unlag.proof.outputs import Rejection, check_remedies
from unlag.proof.times import NOTHING, Removed, Times

WARMUP_RUNS = 20
"""What a launch takes until it is steady, in runs; only for saying how long it will take."""

MOST_ROUNDS = 3
"""Copies that are not told apart from their anchor are timed again, up to so many times the wanted rounds."""
SMALLEST_SHARE = 0.01
"""Code alignment alone moves a loop by that much."""

KNOT_SHARE = 0.15
"""First-in and last-out that differ by more than 15 % of the larger one make a knot ..."""
KNOT_GAP_SHARE = 0.05
"""... unless that is less than 5 % of the variant's gap: measuring it in pairs would cost more than it tells."""


@dataclass(frozen=True)
class Proofs:
    """What the contests of the repaired copies say."""

    suspects: tuple[Suspect, ...]
    rejections: tuple[Rejection, ...]
    times: Times | None
    scores: Mapping[Removed, Scored]
    """Of the copies that decide what accuracy causes cost; the variant's as ``NOTHING``."""
    standard_score: Scored | None
    knot: frozenset[str]
    """Causes whose worths depend on each other; empty where all add up."""
    scored: Removed = NOTHING
    """What the copy is free of that stands for the repaired model in accuracy: all but remedies that fix the shape."""
    points_knot: frozenset[str] = frozenset()
    """Causes whose worths in points depend on each other."""

    @property
    def everything(self) -> Removed:
        """The ids of all suspects."""
        return frozenset(suspect.id for suspect in self.suspects)


NO_PROOFS = Proofs((), (), None, {}, None, frozenset())


def suspects_of(found: Iterable[tuple[Cause, Finding]]) -> tuple[Suspect, ...]:
    """The found causes that have a remedy which can be applied: the one that the finding names, or the first."""
    suspects = []
    for cause, finding in found:
        usable = [r for r in cause.remedies if r.safety != "ADVICE"]
        named = [r for r in usable if r.id == finding.remedy]
        if usable:
            suspects.append(Suspect(cause, (named or usable)[0]))
    return tuple(suspects)


def prove(bench: Bench, compared: Compared, suspects: Sequence[Suspect], observed: Observed | None = None) -> Proofs:
    """Measure each suspect first-in and last-out, and the knots between them in pairs."""
    if not suspects:
        return NO_PROOFS
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
        shelf = CopyShelf(bench.case, suspects, Path(folder), observed)
        kept, rejections = check_remedies(bench.within(0.0, 0.2), shelf, suspects)
        if not kept:
            return replace(NO_PROOFS, rejections=tuple(rejections))
        court = _Court(bench.case, compared, shelf, kept)
        bench.progress(f"proving {len(kept)} causes, about {_minutes(compared.comparison, len(kept))}")
        court.first_and_last(bench.within(0.2, 0.7))
        points_knot = court.score(bench.within(0.7, 0.8))
        knot = _knot(court.times, kept, compared.comparison)
        if knot:
            court.measure(shapley.needed_coalitions(knot), bench.within(0.8, 1.0))
        standard = compared.scores.get(STANDARD)
        return Proofs(
            tuple(kept), tuple(rejections), court.times, court.scores, standard, knot, court.scorable, points_knot
        )


class _Court:
    """Runs the copies against variant, standard and repaired model, in batches that fit into memory."""

    def __init__(self, case: Case, compared: Compared, shelf: CopyShelf, suspects: Sequence[Suspect]) -> None:
        self._case = case
        self._compared = compared
        self._shelf = shelf
        self._all = frozenset(s.id for s in suspects)
        self._timed = sorted(s.id for s in suspects if "speed" in s.cause.affects)
        self.scorable = frozenset(s.id for s in suspects if not s.remedy.fixes_shape)
        self._scored = sorted(s.id for s in suspects if "accuracy" in s.cause.affects and s.id in self.scorable)
        self._room = contenders_at_once(compared.comparison)
        self.times = Times(compared.comparison.variant.latency_ms.median, self._all)
        self.scores: dict[Removed, Scored] = {NOTHING: compared.scores[VARIANT]} if compared.scores else {}

    def first_and_last(self, bench: Bench) -> None:
        """Time each speed cause alone, all but it, and all."""
        alone = [frozenset({cause}) for cause in self._timed]
        self.measure([*alone, *(self._all - {cause} for cause in self._timed)], bench)

    def measure(self, sets: Iterable[Removed], bench: Bench) -> None:
        """Time those of the sets that are new."""
        copies: dict[Removed, Variant] = {}
        wanted = [removed for removed in dict.fromkeys(sets) if removed not in self.times]
        for position, removed in enumerate(wanted):
            bench.progress(f"building repaired copies: {position + 1} of {len(wanted)}", 0.0)
            copy = self._shelf.take(removed)
            if copy.effective != removed:
                self.times.same_as(removed, copy.effective)
            if copy.effective not in self.times and copy.effective != self._all:
                copies[copy.effective] = copy.variant
        waiting = list(copies)
        while waiting or self._all not in self.times:
            anchors = self._anchors()
            batch = waiting[: self._room - len(anchors)]
            waiting = waiting[len(batch) :]
            part = bench.within(
                1 - (len(waiting) + len(batch)) / max(1, len(copies)), 1 - len(waiting) / max(1, len(copies))
            )
            self._measure_batch(anchors | {removed: copies[removed] for removed in batch}, part)

    def _anchors(self) -> dict[Removed, Variant]:
        """Variant and repaired model, which copies are tied to; the standard too, until it was timed once."""
        case = self._case
        anchors = {NOTHING: case.variant, self._all: self._shelf.take(self._all).variant}
        return anchors if times.STANDARD in self.times else {times.STANDARD: case.standard} | anchors

    def _measure_batch(self, contenders: Mapping[Removed, Variant], bench: Bench) -> None:
        names = {removed: _name(removed, self._all) for removed in contenders}
        variants = {name: contenders[removed] for removed, name in names.items()}
        protocol = msgspec.structs.replace(bench.protocol, max_rounds=MOST_ROUNDS * bench.case.rounds)
        with bench.contest(variants, protocol) as contest:
            result = contest.measure(lambda so_far: _is_clear(so_far, names[NOTHING], names[self._all]))
        self.times.add_batch({removed: result.medians_ms(name) for removed, name in names.items()})

    def score(self, bench: Bench) -> frozenset[str]:
        """Score the copies that decide what accuracy causes cost: each alone, all but it, all, and pairs that knot."""
        if not self._scored:
            return frozenset()
        alone = [frozenset({cause}) for cause in self._scored]
        self._score_all([self.scorable, *alone, *(self.scorable - removed for removed in alone)], bench)
        knot = accuracy_knot(self.scores, self._scored, self.scorable)
        self._score_all([frozenset(pair) for pair in combinations(sorted(knot), 2)], bench)
        return knot

    def _score_all(self, sets: Sequence[Removed], bench: Bench) -> None:
        evaluation, standard = bench.workload.evaluation, self._compared.scores.get(STANDARD)
        if evaluation is None or standard is None:
            return
        for position, removed in enumerate(dict.fromkeys(sets)):
            copy = self._shelf.take(removed)
            if copy.effective not in self.scores:
                name = _name(removed, self._all)
                bench.progress(f"accuracy of the copy {name}", position / len(sets))
                try:
                    with bench.contest({name: copy.variant}) as contest:
                        self.scores[copy.effective] = score(contest, name, evaluation, standard.rows)
                except UnlagError:
                    continue  # a copy that can't be scored leaves its cause without an accuracy proof
            self.scores[removed] = self.scores[copy.effective]


def _is_clear(result: ContestResult, variant: str, repaired: str) -> bool:
    """Whether every copy is told apart from the anchor that it is nearer to, or is the same within 1 %."""
    for name in set(result.samples) - {variant, repaired, STANDARD}:
        ratios = [result.ratio(name, anchor) for anchor in (variant, repaired)]
        nearer = min(ratios, key=lambda ratio: abs(math.log(ratio.estimate)))
        apart = nearer.low > 1 or nearer.high < 1
        same = nearer.low > 1 - SMALLEST_SHARE and nearer.high < 1 + SMALLEST_SHARE
        if not (apart or same):
            return False
    return True


def _minutes(comparison: Comparison, causes: int) -> str:
    """How long first-in and last-out of so many causes will take, in words."""
    slowest_ms = max(comparison.standard.latency_ms.median, comparison.variant.latency_ms.median)
    start_ms = max(comparison.standard.load_ms, comparison.variant.load_ms) + WARMUP_RUNS * slowest_ms
    protocol = Protocol()
    turn_ms = max(protocol.min_turn_ms, protocol.min_runs * slowest_ms)
    copies = 2 * causes + 3
    seconds = copies * (protocol.launches * start_ms + protocol.rounds * turn_ms) / 1e3
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _name(removed: Removed, everything: Removed) -> str:
    """What a copy is called in progress and messages."""
    if removed == times.STANDARD:
        return STANDARD
    if not removed:
        return VARIANT
    if removed == everything:
        return "without all causes"
    left = sorted(everything - removed)
    return f"with only {left[0]}" if len(left) == 1 else "without " + "+".join(sorted(removed))


def _knot(measured: Times, suspects: Sequence[Suspect], comparison: Comparison) -> frozenset[str]:
    """Causes that win clearly more or less alone than last."""
    everything = frozenset(s.id for s in suspects)
    least_ms = max(2 * noise_ms(comparison), KNOT_GAP_SHARE * abs(comparison.gap_ms.estimate))
    knotted = set()
    for cause in (s.id for s in suspects if "speed" in s.cause.affects):
        first = measured.won_ms({frozenset({cause}): 1.0})
        last = measured.won_ms(last_out(cause, everything))
        differs = first.minus(last)
        largest = max(abs(first.estimate), abs(last.estimate))
        clear = not differs.low <= 0 <= differs.high
        if clear and abs(differs.estimate) > max(least_ms, KNOT_SHARE * largest):
            knotted.add(cause)
    return frozenset(knotted) if len(knotted) > 1 else frozenset()


def last_out(cause: str, everything: Removed) -> dict[Removed, float]:
    """Over wins: what the cause costs when it alone is left in the repaired model."""
    coefficients = {everything: 1.0}
    if everything - {cause}:
        coefficients[everything - {cause}] = -1.0
    return coefficients


def noise_ms(comparison: Comparison) -> float:
    """How far the control, another process of the same model, came out from the standard; at least 1 % of its time.

    What rounds scatter is in a cost's own interval; this is what separate processes differ by even so.
    """
    apart = abs(comparison.noise.estimate - 1)
    return max(apart, SMALLEST_SHARE) * comparison.standard.latency_ms.median
