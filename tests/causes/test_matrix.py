"""Every cause against every planted model and every healthy twin."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from planting import Pair, gather_evidence
from unlag.causes.contract import Cause, diagnose, find_causes
from unlag.observe.evidence import Evidence

CAUSES = {cause.id: cause for cause in find_causes()}
ZOO = sorted(path.stem for path in (Path(__file__).parents[1] / "zoo").glob("*.py") if path.stem != "__init__")


@cache
def evidence_of(name: str, what: str) -> Evidence:
    pair: Pair = getattr(importlib.import_module(f"zoo.{name}"), what)()
    return gather_evidence(pair)


def cause_named(name: str) -> Cause:
    if name not in CAUSES:
        pytest.fail(f"tests/zoo/{name}.py plants a cause that has no file")
    return CAUSES[name]


@pytest.mark.parametrize("name", ZOO)
def test_is_found_where_it_is_planted(name):
    finding = diagnose(evidence_of(name, "plant"), cause_named(name))
    assert finding.status == "found", finding.reason
    assert re.search(r"\d", finding.reason)


@pytest.mark.parametrize("name", ZOO)
def test_is_ruled_out_with_a_reason_on_its_twin(name):
    finding = diagnose(evidence_of(name, "twin"), cause_named(name))
    assert finding.status == "ruled_out", finding.reason
    assert re.search(r"\d", finding.reason)


@pytest.mark.parametrize("name", ZOO)
def test_no_cause_is_found_on_a_twin(name):
    evidence = evidence_of(name, "twin")
    answers = {cause.id: diagnose(evidence, cause) for cause in CAUSES.values()}
    assert {id_: a.reason for id_, a in answers.items() if a.status in {"found", "failed"}} == {}


@pytest.mark.parametrize("name", ZOO)
def test_no_detector_fails_on_a_plant(name):
    evidence = evidence_of(name, "plant")
    answers = {cause.id: diagnose(evidence, cause) for cause in CAUSES.values()}
    assert {id_: a.reason for id_, a in answers.items() if a.status == "failed"} == {}
