"""A journal gives back what was measured, never something else, and never fails a fix."""

from __future__ import annotations

import math

from unlag.measure.statistics import Interval
from unlag.stages.fixed import Rejected
from unlag.stages.journal import Journal
from unlag.stages.plan import Plan


def test_a_step_is_found_by_everything_that_it_depends_on(tmp_path):
    journal = Journal(tmp_path / "case")
    journal.write(Interval(1.0, 0.9, math.inf), "search", Plan("float32"), {"a": Plan()})
    assert journal.read(Interval, "search", Plan("float32"), {"a": Plan()}) == Interval(1.0, 0.9, math.inf)
    assert journal.read(Interval, "search", Plan("as_is"), {"a": Plan()}) is None
    assert journal.read(Interval, "search", Plan("float32"), {"b": Plan()}) is None
    assert journal.steps == 1
    assert Journal(tmp_path / "case").read(Interval, "search", Plan("float32"), {"a": Plan()}) is not None


def test_a_step_of_another_form_or_a_truncated_one_is_measured_again(tmp_path):
    journal = Journal(tmp_path)
    journal.write(Rejected("a", "b"), "x")
    assert journal.read(Interval, "x") is None
    (place,) = tmp_path.glob("*.step")
    place.write_bytes(place.read_bytes()[:3])
    assert journal.read(Rejected, "x") is None


def test_a_journal_that_cannot_be_written_only_forgets(tmp_path):
    (tmp_path / "blocked").write_text("a file")
    journal = Journal(tmp_path / "blocked" / "case")
    journal.write(1, "x")
    assert journal.read(int, "x") is None
    assert journal.steps == 0
    journal.drop()


def test_no_folder_keeps_nothing():
    journal = Journal()
    journal.write(1, "x")
    assert (journal.read(int, "x"), journal.steps) == (None, 0)
    journal.drop()


def test_a_finished_journal_is_gone(tmp_path):
    journal = Journal(tmp_path / "case")
    journal.write(1, "x")
    journal.drop()
    assert not (tmp_path / "case").exists()
