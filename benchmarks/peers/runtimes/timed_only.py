"""What a runtime answers here when it is asked for more than times and outputs."""

from __future__ import annotations

from pathlib import Path

from unlag.errors import Missing, UsageError
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.runtimes.contract import Option, Placement, Profile


class TimedOnly:
    """The part of unlag's contract for runtimes that this benchmark has no use for."""

    name: str
    options: tuple[Option, ...]

    def check(self, variant: Variant) -> None:
        """Raise UsageError for an unknown option."""
        known = [option.name for option in self.options]
        unknown = sorted(set(variant.options) - set(known))
        if unknown:
            hint = f"options of {self.name}: {', '.join(known)}"
            raise UsageError(f"{variant.spec}: unknown option {unknown[0]!r}", hint=hint)

    def profile(self, variant: Variant, threads: int, feed: Feed, runs: int) -> Profile:
        """Not here.

        Raises:
            UsageError: always.
        """
        del variant, threads, feed, runs
        raise UsageError("this benchmark profiles nothing")

    def executed_graph(self, variant: Variant, threads: int, folder: Path) -> Path | Missing:
        """Not here."""
        del variant, threads, folder
        return Missing("this benchmark looks at no graphs")

    def placement(self, profile: Profile, variant: Variant) -> Placement:
        """Everything runs on the CPU."""
        del variant
        return Placement(nodes={"cpu": len(profile.operators)}, requested="cpu")
