"""One well-formed file that needs no network, and in which no name of a stranger is markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import msgspec
import pytest

from report import records
from report.test_report_text import HOSTILE, RECORDS, hostile_records
from unlag.measure.statistics import Interval
from unlag.report.to_html import render as to_html

XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", RECORDS)
def test_html_is_well_formed_and_alone(name):
    text = to_html(RECORDS[name], beside_article=True)
    ET.fromstring(text)  # noqa: S314
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", text)
    assert "default-src 'none'" in text
    assert len(text) < 200_000


@pytest.mark.parametrize("record", hostile_records())
def test_html_escapes_hostile_names(record):
    text = to_html(record)
    root = ET.fromstring(text)  # noqa: S314
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>alert(1)</script>" in "".join(root.itertext())
    assert HOSTILE not in text


def drawings(record, **options):
    root = ET.fromstring(to_html(record, **options))  # noqa: S314
    return {svg.findtext(f"{SVG}title"): svg for svg in root.iter(f"{SVG}svg")}


def test_each_kind_has_its_pictures():
    assert len(drawings(records.comparison())) == 2
    assert len(drawings(records.explanation())) == 3
    assert len(drawings(records.fix())) == 4


def test_nothing_is_drawn_of_what_was_not_measured():
    assert "where the milliseconds go" not in drawings(records.quick(records.comparison()))


def test_the_waterfall_ends_at_the_variant():
    svg = drawings(records.explanation())["where the milliseconds go"]
    bars = [(e.get("class"), float(e.get("x")), float(e.get("width"))) for e in svg.iter(f"{SVG}rect")]
    kinds = [kind for kind, _, _ in bars]
    assert kinds == ["whole", "cost", "cost", "cost", "rest", "rest", "whole"]
    last_step_ends, total_ends = bars[-2][1] + bars[-2][2], bars[-1][1] + bars[-1][2]
    assert last_step_ends == pytest.approx(total_ends, abs=2.5)  # the example's numbers are rounded


def test_disturbed_rounds_are_hollow():
    svg = drawings(records.comparison())["median time of each round by contender"]
    assert sum(e.get("class") == "disturbed" for e in svg.iter(f"{SVG}circle")) == 3


def test_article_marks_only_beside_the_article():
    title = "stages as shares of the baseline"
    plain, beside = drawings(records.fix())[title], drawings(records.fix(), beside_article=True)[title]
    assert not [e for e in plain.iter() if e.get("class") == "article"]
    assert len([e for e in beside.iter() if e.get("class") == "article"]) == 12


def test_unbounded_intervals_still_draw():
    unbounded = Interval(1.2, float("-inf"), float("inf"))
    comparison = msgspec.structs.replace(records.comparison(), slowdown=unbounded, noise=unbounded, samples={})
    text = to_html(comparison)
    ET.fromstring(text)  # noqa: S314
    assert "inf" not in re.findall(r'[xy]\d?="([^"]*)"', text)
    assert "nan" not in text
