"""How the report says what padding costs and how many rows a second there are."""

from __future__ import annotations

import msgspec
import pytest

from report import records
from unlag.measure.statistics import Interval
from unlag.report.document import Line, Section, Table
from unlag.report.record import parse_record, to_json
from unlag.report.to_html import render as render_html
from unlag.report.to_markdown import render as render_markdown
from unlag.report.use_sections import use_sections
from unlag.stages.fixed import Fix, Lengths, OtherRuntime, Rate, Rejected, Throughput, Way


def pm(value: float, half: float) -> Interval:
    return Interval(value, value - half, value + half)


def fix(*, quiet: bool = True, pinned: bool = True) -> Fix:
    lengths = Lengths(
        texts=2552, rows=512, batch=32, shortest=5, median=12, longest=46, quiet=quiet,
        ways=(
            Way("as they come", 16, 0.472, pm(900, 9), Interval(1, 1, 1)),
            Way("by equal lengths", 40, 0.0, pm(549, 5), pm(0.61, 0.01)),
            Way("in buckets", 18, 0.1, pm(600, 5), pm(0.667, 0.01), (10, 14, 24, 46)),
        ),
    )  # fmt: skip
    throughput = Throughput(
        cores=4, batch=1, replicas=4, threads=1, gain=pm(1.87, 0.08), pinned=pinned, quiet=quiet,
        standard=(Rate(1, 4, pm(123, 2), 110_000_000), Rate(2, 2, pm(128, 2), 220_000_000)),
        fixed=(Rate(1, 4, pm(9.25, 0.3), 111_000_000), Rate(4, 1, pm(239, 8), 444_000_000)),
        refused=(Rejected("standard, 4 × 1", "it would take 9.1 GB of memory, and 8.0 GB may be used"),),
    )  # fmt: skip
    return msgspec.structs.replace(records.fix(), lengths=lengths, throughput=throughput)


def table_of(section: Section) -> list[tuple[str, ...]]:
    (table,) = [element for element in section.elements if isinstance(element, Table)]
    return [row.cells for row in table.rows]


def lines_of(section: Section) -> list[str]:
    return [element.text for element in section.elements if isinstance(element, Line)]


def test_nothing_measured_nothing_said():
    assert use_sections(records.fix()) == []


def test_rows_a_second_stand_side_by_side():
    section = use_sections(fix())[0]
    assert table_of(section) == [
        ("1 × 4", "123 ± 2", "9.2 ± 0.3", "111.0 MB"),
        ("2 × 2", "128 ± 2", "–", "–"),
        ("4 × 1", "–", "239 ± 8", "444.0 MB"),
    ]
    said = lines_of(section)
    assert said[0] == "most gets done with 4 × 1: 1.87× (1.79–1.95) the standard's best"
    assert "standard, 4 × 1: it would take 9.1 GB of memory, and 8.0 GB may be used" in said


def test_what_padding_wastes_is_said_first():
    section = use_sections(fix())[1]
    assert lines_of(section)[0] == (
        "texts of 5 to 46 tokens, 12 in the middle; padding to the longest in batches of 32 wastes 47 % of the tokens;"
        " by equal lengths they take 0.61 of the time"
    )
    assert table_of(section)[0] == ("as they come", "16", "47 %", "900.0 ± 9.0", "1")
    assert table_of(section)[2][0] == "in buckets of 10, 14, 24, 46 tokens"


@pytest.mark.parametrize("quiet", [True, False])
def test_a_busy_machine_is_said(quiet):
    for section in use_sections(fix(quiet=quiet)):
        assert ("other processes ran on the cores in the meantime" in lines_of(section)) != quiet


def test_replicas_that_wander_over_the_cores_are_said():
    assert any("can't keep replicas" in line for line in lines_of(use_sections(fix(pinned=False))[0]))


def test_the_record_keeps_it_and_every_report_shows_it():
    record = fix()
    assert parse_record(to_json(record), "run.json") == record
    for render in (render_html, render_markdown):
        text = render(record)
        assert "Rows a second" in text
        assert "Texts of many lengths" in text


def test_every_runtimes_best_is_told_and_goes_through_the_record():
    runtimes = (
        OtherRuntime(runtime="one", model="int8", ratio=pm(0.5, 0.02), loss=pm(0.21, 0.1), size_bytes=23_000_000),
        OtherRuntime(runtime="other", model="the standard", ratio=pm(1.4, 0.02), loss=None, size_bytes=90_000_000),
    )
    record = msgspec.structs.replace(records.fix(), runtimes=runtimes)
    assert parse_record(to_json(record), "run.json") == record
    (section,) = use_sections(record)
    assert table_of(section) == [
        ("one", "int8", "0.50 ± 0.02", "0.21 ± 0.10", "23.0 MB"),
        ("other", "the standard", "1.40 ± 0.02", "–", "90.0 MB"),
    ]
    assert "Other runtimes" in render_markdown(record)
