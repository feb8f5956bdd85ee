"""A small measured search: candidates beside the current plan, in one contest, with their accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path

import msgspec

from unlag.errors import UnlagError
from unlag.measure.accuracy import Scored, agreement, score
from unlag.measure.bench import Bench, inspect, quick
from unlag.measure.compare import STANDARD, VARIANT, Compared
from unlag.measure.contest import Contest
from unlag.measure.statistics import SMALLEST_ACCURACY_EFFECT, SMALLEST_EFFECT, Interval
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.proof.capacity import contenders_at_once
from unlag.stages.fixed import Rejected
from unlag.stages.goal import Goal
from unlag.stages.journal import Journal
from unlag.stages.plan import Plan, build

CURRENT = "current"

SAME_OUTPUTS = 1e-4
"""Relative error of outputs below which a candidate's accuracy is the current plan's: rounding in another order."""

SAME_SIZE = 1.02
"""Ratio of sizes below which two models are equally large."""

ROOM_BYTES = 5e9
"""Memory that the contenders of a search may take together, where half of the free memory allows it."""

ONE_LAUNCH = 1
"""Searches start each contender once: what is kept is measured again, in two launches, at the end."""


class Trial(msgspec.Struct, frozen=True):
    """One candidate beside the current plan."""

    plan: Plan
    ratio: Interval
    """Its time over the current plan's."""
    change: Interval | None
    """Points against the current plan; nothing without a labelled workload."""
    loss: Interval | None
    """Points below the standard; nothing without a labelled workload."""
    cosine: float
    """Of its outputs to the standard's."""
    size_bytes: int
    top1: float | None = None
    """Share of rows with the standard's winner; nothing where outputs have no classes."""

    @property
    def faster(self) -> bool:
        """Whether the whole interval says so, beyond what code alignment does."""
        return self.ratio.high < 1 - SMALLEST_EFFECT

    @property
    def slower(self) -> bool:
        """Whether the whole interval says so."""
        return self.ratio.low > 1 + SMALLEST_EFFECT

    @property
    def more_accurate(self) -> bool:
        """Whether the whole interval says so."""
        return self.change is not None and self.change.low > SMALLEST_ACCURACY_EFFECT


class Round(msgspec.Struct, frozen=True):
    """What a search found: trials that ran, and candidates that couldn't be built or run."""

    trials: dict[str, Trial]
    failed: tuple[Rejected, ...]
    current_loss: Interval | None
    """Points that the current plan lies below the standard."""
    current_cosine: float
    best_cosine: float
    """The highest cosine to the standard's outputs that any current plan has had so far."""
    current_size_bytes: int
    quiet: bool = True
    """Whether nothing else ran on the cores while it was timed."""


class Workshop:
    """Builds plans and tries them out; remembers what the standard scores."""

    def __init__(
        self,
        bench: Bench,
        compared: Compared,
        folder: Path,
        *,
        observed: Observed | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.bench = bench
        shapes = {name: array.shape for name, array in bench.workload.feed.items()}
        self.observed = msgspec.structs.replace(observed or Observed(), input_shapes=shapes)
        self._standard = compared.scores.get(STANDARD)
        self._folder = folder
        self._journal = journal or Journal()
        self._at_once = contenders_at_once(compared.comparison, ROOM_BYTES)
        self._built = {_key(Plan()): bench.case.variant, _key(Plan(from_standard=True)): bench.case.standard}
        sides = {STANDARD: bench.case.standard, VARIANT: bench.case.variant}
        self._known: dict[str, Scored] = {sides[name].spec: scored for name, scored in compared.scores.items()}
        self._numbers = itertools.count()
        self._cosines: list[float] = []
        self._expected: list[Feed] = []

    def make(self, plan: Plan, current: Plan | None = None) -> Variant:
        """The plan's model; built once.

        Raises:
            UnlagError: it can't be built, or does not change the ``current`` plan's model.
        """
        key = _key(plan)
        if key not in self._built:
            self._built[key] = self._with_options(plan) or self._build(plan, current)
        return self._built[key]

    def _with_options(self, plan: Plan) -> Variant | None:
        """The model without the plan's session options, which change nothing in the file, with them; if it is there."""
        bare = self._built.get(_key(msgspec.structs.replace(plan, options={})))
        return None if bare is None else bare.with_options(**plan.options)

    def _build(self, plan: Plan, current: Plan | None) -> Variant:
        path = self._folder / f"plan{next(self._numbers)}.onnx"
        workload = self.bench.workload
        feeds = workload.calibration or workload.agreement or (workload.feed,)
        return build(plan, self.bench.case, path, observed=self.observed, current=current, feeds=feeds)

    def discard(self, plans: Iterable[Plan]) -> None:
        """Delete models that are not needed any more: a search leaves a dozen copies of the model behind."""
        for plan in plans:
            variant = self._built.pop(_key(plan), None)
            if variant is not None and any(other.path == variant.path for other in self._built.values()):
                continue  # the same file with other session options
            if variant is not None and Path(variant.path).parent == self._folder:
                for file in self._folder.glob(f"{Path(variant.path).stem}.*"):  # and its weights, where they are apart
                    file.unlink()

    @property
    def at_once(self) -> int:
        """How many contenders fit into memory together."""
        return self._at_once

    @property
    def journal(self) -> Journal:
        """What an interrupted run has measured."""
        return self._journal

    def within(self, begin: float, end: float) -> Workshop:
        """The same workshop for a part of the work."""
        part = copy(self)
        part.bench = self.bench.within(begin, end)
        return part

    def search(self, what: str, current: Plan, candidates: Mapping[str, Plan]) -> Round:
        """Time all candidates beside the current plan, and score those whose outputs differ from its.

        As many race at once as fit into memory; what an interrupted run has measured is taken from its journal.
        """
        tried = self._journal.read(Round, "search", what, current, candidates)
        if tried is None:
            groups = _groups(candidates, max(1, self._at_once - 1))
            parts = [self.within(k / len(groups), (k + 1) / len(groups)) for k in range(len(groups))]
            tried = _joined([part.race(what, current, group) for part, group in zip(parts, groups, strict=True)])
            self._journal.write(tried, "search", what, current, candidates)
        self._cosines.append(tried.current_cosine)
        return msgspec.structs.replace(tried, best_cosine=max(self._cosines))

    def race(self, what: str, current: Plan, candidates: Mapping[str, Plan]) -> Round:
        """Build candidates that fit into memory together, and time and score them beside the current plan."""
        variants: dict[str, Variant] = {CURRENT: self.make(current)}
        failed = []
        for position, (name, plan) in enumerate(candidates.items()):
            self.bench.progress(f"{what}: building {name}", 0.2 * position / len(candidates))
            try:
                variants[name] = self.make(plan, current)
            except UnlagError as error:
                failed.append(Rejected(name, error.message))
        unchanged = [name for name in variants if name != CURRENT and _same_model(variants[name], variants[CURRENT])]
        for name in unchanged:
            del variants[name]
            failed.append(Rejected(name, "nothing to change in this model"))
        return self._race(what, candidates, variants, failed)

    def _race(
        self, what: str, candidates: Mapping[str, Plan], variants: dict[str, Variant], failed: list[Rejected]
    ) -> Round:
        protocol = msgspec.structs.replace(quick(self.bench.protocol, self.bench.case.rounds), launches=ONE_LAUNCH)
        progress = self.bench.progress
        feeds = self.bench.workload.agreement or (self.bench.workload.feed,)
        with self.bench.within(0.3, 0.9).contest(variants, protocol) as contest:
            judge = _Judge(contest, feeds, self._standard_outputs(feeds))
            for name in list(variants):
                reason = judge.look(name)
                if reason and name == CURRENT:
                    raise UnlagError(f"the model of the stage before can't be run any more: {reason}")
                if reason:
                    failed.append(Rejected(name, reason))
                    contest.drop(name)
            progress(f"{what}: timing", 0.3)
            result = contest.measure()
            scores = self._scores(contest, judge, variants)
            trials = {
                name: Trial(
                    plan=candidates[name],
                    ratio=result.ratio(name, CURRENT),
                    change=_change(scores, name, self.bench.case.seed),
                    loss=self._loss(scores.get(name)),
                    cosine=judge.cosines[name],
                    top1=judge.top1[name],
                    size_bytes=inspect(variants[name]).size_bytes,
                )
                for name in judge.cosines
                if name != CURRENT
            }
        return Round(
            trials=trials,
            failed=tuple(failed),
            current_loss=self._loss(scores.get(CURRENT)),
            current_cosine=judge.cosines[CURRENT],
            best_cosine=judge.cosines[CURRENT],
            current_size_bytes=inspect(variants[CURRENT]).size_bytes,
            quiet=result.quiet,
        )

    def _standard_outputs(self, feeds: Sequence[Feed]) -> list[Feed]:
        """What the standard answers; asked once, and shared with the parts of this workshop."""
        if not self._expected:
            with self.bench.contest({STANDARD: self.bench.case.standard}) as contest:
                self._expected += contest.answers(STANDARD, feeds)
        return self._expected

    def _scores(self, contest: Contest, judge: _Judge, variants: Mapping[str, Variant]) -> dict[str, Scored]:
        if self.bench.workload.evaluation is None or self._standard is None:
            return {}
        scores = {CURRENT: self.score(contest, CURRENT, variants[CURRENT])}
        for name in judge.cosines:
            if name in judge.like_current:
                scores[name] = scores[CURRENT]
            elif name != CURRENT:
                scores[name] = self.score(contest, name, variants[name])
        return scores

    def score(self, contest: Contest, name: str, variant: Variant) -> Scored:
        """The variant's score; a pass over the data only for one that has not been scored yet."""
        evaluation, standard = self.bench.workload.evaluation, self._standard
        if evaluation is None or standard is None:
            raise UnlagError("a candidate was scored without a labelled workload")
        if variant.spec not in self._known:
            self._known[variant.spec] = score(contest, name, evaluation, standard.rows)
        return self._known[variant.spec]

    def _loss(self, scored: Scored | None) -> Interval | None:
        """Points below the standard, resampled in pairs."""
        if scored is None or self._standard is None:
            return None
        if scored is self._standard:
            return Interval(0.0, 0.0, 0.0)
        change = scored.change_from(self._standard, self.bench.case.seed)
        return Interval(-change.estimate, -change.high, -change.low)


def _groups(candidates: Mapping[str, Plan], most: int) -> list[dict[str, Plan]]:
    """Candidates in groups of at most ``most``; one empty group where there are none."""
    names = list(candidates)
    starts = range(0, max(1, len(names)), most)
    return [{name: candidates[name] for name in names[start : start + most]} for start in starts]


def _joined(parts: Sequence[Round]) -> Round:
    """Groups that raced apart as one round."""
    return msgspec.structs.replace(
        parts[0],
        trials={name: trial for part in parts for name, trial in part.trials.items()},
        failed=tuple(rejected for part in parts for rejected in part.failed),
        quiet=all(part.quiet for part in parts),
    )


def _key(plan: Plan) -> bytes:
    return msgspec.json.encode(plan)


class _Judge:
    """Looks at outputs before anything is timed: what fails or is not finite does not race."""

    def __init__(self, contest: Contest, feeds: Sequence[Feed], expected: list[Feed]) -> None:
        self._contest = contest
        self._feeds = feeds
        self._expected = expected
        self._current: list[Feed] = []
        self.cosines: dict[str, float] = {}
        self.top1: dict[str, float | None] = {}
        self.like_current: set[str] = set()

    def look(self, name: str) -> str | None:
        """Why the candidate can't race, or nothing."""
        try:
            answers = self._contest.answers(name, self._feeds)
            agreed = agreement(self._expected, answers)
            self.cosines[name], self.top1[name] = agreed.cosine, agreed.top1
        except UnlagError as error:
            self.cosines.pop(name, None)
            return f"it does not run: {error.message}"
        if name == CURRENT:
            self._current = answers
        elif agreement(self._current, answers).relative_error < SAME_OUTPUTS:
            self.like_current.add(name)
        return None


def _change(scores: Mapping[str, Scored], name: str, seed: int) -> Interval | None:
    if name not in scores:
        return None
    if scores[name] is scores[CURRENT]:
        return Interval(0.0, 0.0, 0.0)
    return scores[name].change_from(scores[CURRENT], seed)


def _same_model(one: Variant, other: Variant) -> bool:
    """Whether two built plans are byte for byte the same model with the same options."""
    if (one.runtime, one.options) != (other.runtime, other.options):
        return False
    files = [(Path(variant.path), Path(variant.path).with_suffix(".bin")) for variant in (one, other)]
    return all(_same_bytes(first, second) for first, second in zip(*files, strict=True))


def _same_bytes(one: Path, other: Path) -> bool:
    """Whether two files hold the same; two that are not there do."""
    if not (one.exists() and other.exists()):
        return one.exists() == other.exists()
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def percent(ratio: Interval) -> str:
    """``−12.3 % (−13.0 … −11.5)``: what a ratio of times saves or costs."""
    values = [100 * (end - 1) for end in (ratio.estimate, ratio.low, ratio.high)]
    return f"{values[0]:+.1f} % time ({values[1]:+.1f} to {values[2]:+.1f})"


def in_words(trial: Trial) -> str:
    """A trial's numbers in one phrase."""
    words = percent(trial.ratio)
    if trial.change is not None and trial.change != Interval(0.0, 0.0, 0.0):
        words += f", {trial.change.estimate:+.2f} points ({trial.change.low:+.2f} to {trial.change.high:+.2f})"
    return words


def best_of(trials: Mapping[str, Trial], goal: Goal) -> str:
    """The fastest, or the smallest where size is the objective.

    Among those that can't be told apart from it in that, the most accurate, then the smallest, then the fastest.
    """
    if goal.objective == "size":
        smallest = min(trial.size_bytes for trial in trials.values())
        tied = [name for name, trial in trials.items() if trial.size_bytes <= smallest * SAME_SIZE]
    else:
        fastest = min(trials, key=lambda name: trials[name].ratio.estimate)
        tied = [name for name, trial in trials.items() if trial.ratio.estimate <= trials[fastest].ratio.high]

    def rank(name: str) -> tuple[float, float, float]:
        trial = trials[name]
        loss = 0.0 if trial.loss is None else round(goal.counted(trial.loss) / SMALLEST_ACCURACY_EFFECT)
        second, third = trial.size_bytes, trial.ratio.estimate
        return (loss, third, second) if goal.objective == "size" else (loss, second, third)

    return min(tied, key=rank)
