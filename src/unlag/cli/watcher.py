"""Progress on standard error: a moving line on a terminal, now and then a plain line anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from unlag.cli.screen import say
from unlag.report.document import clean

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

REFRESHES_PER_S = 1
"""Drawing costs CPU time on the cores that are being measured: 0.3 ms each time."""
SHORTEST_S = 2.0
"""Plain lines are at least so far apart ..."""
LONGEST_S = 20.0
"""... and within one step this far."""
SMALLEST_SHARE = 0.05
"""Below it, time left would be a guess."""


class Pace:
    """Which step is running, how much of the whole work is done, and how long the rest will take."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begin = clock()
        self.step = ""
        self.share = 0.0

    def note(self, what: str, share: float | None) -> bool:
        """Take notice; says whether a new step began. What follows a colon is a detail of the same step."""
        self.share = max(self.share, share or 0.0)
        step = what.split(":", 1)[0]
        if step == self.step:
            return False
        self.step = step
        return True

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begin

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest will take at the pace so far; nothing while that would be a guess."""
        if self.share < SMALLEST_SHARE:
            return None
        return self.elapsed_s * (1 - self.share) / self.share


def duration(seconds: float) -> str:
    """A time for people: ``45 s``, ``2 min 05 s``."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


class Watcher:
    """Implements ``Progress``; a context manager, so that the terminal is left as it was."""

    def __init__(self, *, quiet: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self._quiet = quiet or sys.stderr is None
        self._clock = clock
        self._pace = Pace(clock)
        self._last_line_s = -SHORTEST_S
        self._unsaid = True
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        """Start the moving line, where there is a terminal."""
        if not self._quiet and sys.stderr.isatty():
            self._bar = _make_bar()
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None, left="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the moving line away."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, share: float | None = None) -> None:
        """Show what is being done now."""
        if self._quiet:
            return
        self._unsaid |= self._pace.note(what, share)
        left_s = self._pace.left_s
        left = "" if left_s is None else f"about {duration(left_s)} left"
        if self._bar is not None:
            self._bar.update(self._task, description=clean(what), total=1.0, completed=self._pace.share, left=left)
            return
        now_s = self._pace.elapsed_s
        if now_s - self._last_line_s < (SHORTEST_S if self._unsaid else LONGEST_S):
            return
        self._last_line_s, self._unsaid = now_s, False
        times = ", ".join(filter(None, (duration(now_s), left)))
        say(f"unlag: {what} ({times})")


def _make_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TimeElapsedColumn(),
        BarColumn(bar_width=16),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[left]}", style="dim", markup=False),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        refresh_per_second=REFRESHES_PER_S,
        transient=True,
    )
