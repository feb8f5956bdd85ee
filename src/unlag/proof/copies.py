"""Repaired copies of a variant: the same model with the causes in a set taken away."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlag.causes.contract import Cause, Remedy
from unlag.model.case import Case
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.proof.times import Removed
from unlag.runtimes.contract import find_runtime


@dataclass(frozen=True)
class Suspect:
    """A cause that was found, and the remedy that shall prove it."""

    cause: Cause
    remedy: Remedy[Any]

    @property
    def id(self) -> str:
        """The cause's id."""
        return self.cause.id


@dataclass(frozen=True)
class Copy:
    """A repaired copy on disk, and in how many places each cause's remedy changed it."""

    variant: Variant
    changes: dict[str, int]

    @property
    def effective(self) -> Removed:
        """The causes whose remedies changed anything."""
        return frozenset(cause for cause, count in self.changes.items() if count)


def make_copy(case: Case, suspects: Iterable[Suspect], path: Path, observed: Observed | None = None) -> Copy:
    """Apply the suspects' remedies to a fresh copy of the variant, in the order of their steps, and write it."""
    draft = find_runtime(case.variant.runtime).open_draft(case.variant, case.standard, observed)
    changes = {
        suspect.id: suspect.remedy.apply(draft)
        for suspect in sorted(suspects, key=lambda s: (s.remedy.step, s.remedy.id))
    }
    copy = Copy(draft.save(path), changes)
    del draft
    gc.collect()  # models refer to themselves in circles: this one would stay beside the next
    return copy


class CopyShelf:
    """Makes each copy once, and knows which sets of causes give the same one."""

    def __init__(self, case: Case, suspects: Iterable[Suspect], folder: Path, observed: Observed | None = None) -> None:
        self._case = case
        self._observed = observed
        self._suspects = {suspect.id: suspect for suspect in suspects}
        self._folder = folder
        self._copies: dict[Removed, Copy] = {frozenset(): Copy(case.variant, {})}
        self._same: dict[Removed, Removed] = {}

    def take(self, removed: Removed) -> Copy:
        """The copy without these causes; what came out unchanged, or like another copy, is not kept twice."""
        if removed not in self._same:
            place = Path(tempfile.mkdtemp(prefix="copy", dir=self._folder))
            suspects = [self._suspects[cause] for cause in removed]
            copy = make_copy(self._case, suspects, place / "model.onnx", self._observed)
            self._same[removed] = copy.effective
            if copy.effective in self._copies:
                shutil.rmtree(place)
            else:
                self._copies[copy.effective] = copy
        return self._copies[self._same[removed]]
