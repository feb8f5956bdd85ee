"""JSON round-trips, keeps the names that scripts rely on, and refuses what it does not know."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report import records
from unlag.errors import UsageError
from unlag.measure.comparison import Comparison
from unlag.measure.statistics import Interval
from unlag.report.record import parse_record, read_record, to_json

INTERVAL = {"estimate": 0, "low": 0, "high": 0}
SIDE = {
    "spec": 0,
    "runtime": 0,
    "latency_ms": {"median": 0, "low": 0, "high": 0},
    "accuracy": {"metric": 0, "value": 0},
    "size_bytes": 0,
    "peak_memory_bytes": 0,
}
COMPARISON = {
    "schema": 0,
    "kind": 0,
    "host": {},
    "workload": 0,
    "standard": SIDE,
    "variant": SIDE,
    "slowdown": INTERVAL,
    "noise": INTERVAL,
    "accuracy_change": INTERVAL,
    "verdict": {"speed": 0, "accuracy": 0},
    "samples": {},
    "warnings": [],
}
CAUSE = {
    "id": 0,
    "title": 0,
    "dimension": 0,
    "status": 0,
    "reason": 0,
    "cost_ms": 0,
    "accuracy_cost": 0,
    "share_of_gap": 0,
    "where": [],
    "remedy": 0,
}
EXPLANATION = {
    "schema": 0,
    "kind": 0,
    "comparison": COMPARISON,
    "causes": [CAUSE],
    "reconciliation": dict.fromkeys(("gap_ms", "explained_ms", "interaction_ms", "unexplained_ms"), INTERVAL),
    "blocks": [{"name": 0, "standard_ms": 0, "variant_ms": 0}],
}
STAGE = {
    "name": 0,
    "latency_ms": INTERVAL,
    "speedup_over_baseline": INTERVAL,
    "slowdown_to_standard": INTERVAL,
    "accuracy": {"metric": 0, "value": 0},
    "accuracy_change": INTERVAL,
    "size_bytes": 0,
    "kept": [],
    "rejected": [{"remedy": 0, "reason": 0}],
}
FIX = {"schema": 0, "kind": 0, "explanation": EXPLANATION, "stages": [STAGE], "npu": 0, "output": 0}
CONTRACT = [
    ("comparison", records.comparison(), COMPARISON),
    ("explanation", records.explanation(), EXPLANATION),
    ("fix", records.fix(), FIX),
]


def missing(content, wanted, where="") -> list[str]:
    """Names of the contract that the content lacks."""
    if isinstance(wanted, list):
        return [lack for item in content for lack in missing(item, wanted[0], f"{where}[]")] if wanted else []
    if not isinstance(wanted, dict):
        return []
    lacks = [f"{where}.{name}" for name in wanted if name not in content]
    return lacks + [
        lack for name in wanted if name in content for lack in missing(content[name], wanted[name], f"{where}.{name}")
    ]


@pytest.mark.parametrize(("kind", "record", "wanted"), CONTRACT)
def test_every_name_of_the_contract_is_there(kind, record, wanted):
    content = json.loads(to_json(record))
    assert missing(content, wanted) == []
    assert content["kind"] == kind
    assert content["schema"] == 1


def test_the_contract_test_sees_a_missing_name():
    content = json.loads(to_json(records.fix()))
    del content["explanation"]["comparison"]["noise"]["low"]
    assert missing(content, FIX) == [".explanation.comparison.noise.low"]


@pytest.mark.parametrize("record", [records.comparison(), records.inconclusive(), records.explanation(), records.fix()])
def test_round_trip(record, tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(to_json(record))
    assert read_record(path) == record


def test_null_stands_for_an_interval_without_bounds():
    unbounded = Interval(1.0, -math.inf, math.inf)
    comparison = msgspec.structs.replace(records.comparison(), slowdown=unbounded, accuracy_change=None)
    data = to_json(comparison)
    assert json.loads(data)["slowdown"] == {"estimate": 1.0, "low": None, "high": None}
    assert parse_record(data, "run.json") == comparison


@given(
    estimate=st.floats(allow_nan=False, allow_infinity=False),
    low=st.floats(allow_nan=False, allow_infinity=False) | st.just(-math.inf),
    high=st.floats(allow_nan=False, allow_infinity=False) | st.just(math.inf),
)
def test_any_interval_round_trips(estimate, low, high):
    comparison = msgspec.structs.replace(records.comparison(), slowdown=Interval(estimate, low, high))
    assert parse_record(to_json(comparison), "run.json") == comparison


def test_raw_times_stay_on_one_line():
    lines = to_json(records.comparison()).decode().splitlines()
    assert any('"times_ns": [' in line and line.rstrip(",").endswith("]") for line in lines)


def test_unknown_names_are_ignored():
    content = json.loads(to_json(records.comparison()))
    content["later"] = {"estimate": 1}
    assert parse_record(json.dumps(content).encode(), "run.json") == records.comparison()


def changed(**changes) -> bytes:
    return json.dumps({**json.loads(to_json(records.comparison())), **changes}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a whole JSON"),
        (to_json(records.fix())[:5000], "not a whole JSON"),
        (b"\xff\xfe", "not a whole JSON"),
        (b"[" * 100_000, "not a whole JSON"),
        (b"[1]", "no record of unlag"),
        (b'{"a": 1}', "no record of unlag"),
        (changed(schema=2), "schema 2"),
        (changed(kind="scaling"), "kind 'scaling'"),
        (changed(kind=["fix"]), "kind"),
        (changed(kind="fix"), "not a valid record"),
        (changed(slowdown="fast"), "not a valid record"),
        (changed(slowdown=None), "not a valid record"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(data, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_record(data, "run.json")
    assert "\n" not in caught.value.message


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="can't read"):
        read_record(tmp_path / "none.json")
    with pytest.raises(UsageError, match="can't read"):
        read_record(tmp_path)


def test_records_are_what_they_say():
    assert isinstance(parse_record(to_json(records.by_shape()), "x"), Comparison)
