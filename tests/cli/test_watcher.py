"""Progress lines, with a scripted clock."""

from __future__ import annotations

import pytest

from unlag.cli.watcher import Pace, Watcher, duration


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_time_left_comes_from_the_pace_of_the_whole_work():
    clock = Clock()
    pace = Pace(clock)
    assert pace.note("starting", None)
    assert pace.left_s is None
    clock.now += 10
    assert pace.note("timing: round 1", 0.25)
    assert pace.left_s == pytest.approx(30)
    clock.now += 10
    assert not pace.note("timing: round 2", 0.5)
    assert pace.left_s == pytest.approx(20)
    assert pace.elapsed_s == pytest.approx(20)


def test_progress_never_goes_back():
    pace = Pace(Clock())
    pace.note("timing", 0.5)
    pace.note("building", 0.25)
    pace.note("building: more", None)
    assert pace.share == 0.5


def test_plain_lines_come_with_a_new_step_and_seldom_otherwise(capsys):
    clock = Clock()
    with Watcher(quiet=False, clock=clock) as watcher:
        watcher("starting the standard", 0.0)
        clock.now += 1
        watcher("warming up: variant")  # too soon after the last line
        clock.now += 1
        watcher("warming up: control", 0.1)
        clock.now += 1
        watcher("checking", 0.1)  # too soon again, and over before its time comes
        clock.now += 1
        watcher("timing 3 contenders: round 1 of 5", 0.1)
        clock.now += 5
        watcher("timing 3 contenders: round 2 of 5", 0.2)
        clock.now += 20
        watcher("timing 3 contenders: round 3 of 5", 0.5)
    assert capsys.readouterr().err.splitlines() == [
        "unlag: starting the standard (0 s)",
        "unlag: warming up: control (2 s, about 18 s left)",
        "unlag: timing 3 contenders: round 1 of 5 (4 s, about 36 s left)",
        "unlag: timing 3 contenders: round 3 of 5 (29 s, about 29 s left)",
    ]


def test_quiet_says_nothing(capsys):
    with Watcher(quiet=True) as watcher:
        watcher("timing", 0.5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s")])
def test_durations(seconds, text):
    assert duration(seconds) == text
