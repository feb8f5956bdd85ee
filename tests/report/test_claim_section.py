"""The user's own times in a report."""

from __future__ import annotations

import msgspec

from report import records
from unlag.observe.evidence import Claim
from unlag.proof.claim_report import ClaimReport, ClaimTrial, SkippedTrial
from unlag.report.claim_section import SHOWN, claim_section
from unlag.report.document import Line, Page, Table
from unlag.report.to_text import TextPage, plain_text


def trial(number: int, off_by: float, *, reproduces: bool = False) -> ClaimTrial:
    return ClaimTrial(f"way_{number}", f"way {number}", "both", 30.0, 60.0, off_by, reproduces, measured=True)


def report(**changes: object) -> ClaimReport:
    base = ClaimReport(
        claim=Claim(30.5, 62.0),
        standard_ms=records.pm(23.4, 0.2),
        variant_ms=records.pm(75.4, 0.2),
        slowdown=records.pm(3.23, 0.05),
        agrees=False,
        ratio_agrees=False,
        trials=(trial(0, 1.02, reproduces=True), *(trial(n, 1.3 + n) for n in range(1, 10))),
        skipped=(SkippedTrial("one_thread", "1 thread instead of 2", "runtime fake has no option spinning"),),
        conclusion="It is what one gets with way 0.",
    )
    return msgspec.structs.replace(base, **changes)


def test_claimed_measured_and_tried_times_stand_in_one_table():
    section = claim_section(report())
    (table,) = (element for element in section.elements if isinstance(element, Table))
    assert [row.cells[0] for row in table.rows[:3]] == ["claimed", "measured", "way 0"]
    assert table.rows[0].cells[1:4] == ("30.5 ms", "62.0 ms", "2.0×")
    assert table.rows[2].cells[4:] == ("2 %", "gives it")
    assert len(table.rows) == 3 + SHOWN
    lines = [element.text for element in section.elements if isinstance(element, Line)]
    assert lines[0] == "It is what one gets with way 0."
    assert lines[1].startswith("3 more ways of measuring")
    assert lines[2] == "not tried: 1 thread instead of 2"


def test_a_claim_that_agrees_is_one_line():
    agreed = report(agrees=True, trials=(), skipped=(), conclusion="They agree.")
    assert [element.text for element in claim_section(agreed).elements if isinstance(element, Line)] == ["They agree."]
    assert not any(isinstance(element, Table) for element in claim_section(agreed).elements)


def test_a_side_that_was_not_claimed_has_no_numbers():
    section = claim_section(report(claim=Claim(None, 62.0), trials=()))
    (table,) = (element for element in section.elements if isinstance(element, Table))
    assert {row.cells[1] for row in table.rows} == {"–"}
    assert {row.cells[3] for row in table.rows} == {"–"}


def test_it_prints_at_any_width():
    page = Page("", (claim_section(report()),))
    for width in (30, 80, 200):
        assert "gives it" in plain_text(TextPage(page), width)
