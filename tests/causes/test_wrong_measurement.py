"""What is said of claims that neither agree nor hold the load, and of slower models that are none."""

from __future__ import annotations

import msgspec
import pytest

from planting import Times, gather_evidence
from unlag.causes.contract import Finding, diagnose
from unlag.causes.wrong_measurement import CAUSE
from unlag.observe.evidence import Claim, Evidence
from zoo.wrong_measurement import plant

STANDARD, VARIANT = Times(20.0, 100.0, 40.0), Times(15.0, 300.0, 60.0)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return gather_evidence(plant())


def finding_for(evidence: Evidence, claim: Claim | None, standard: Times = STANDARD) -> Finding:
    side = msgspec.structs.replace(evidence.standard, **standard._asdict())
    return diagnose(msgspec.structs.replace(evidence, standard=side, claim=claim), CAUSE)


def test_without_a_claim_nothing_can_be_said(evidence):
    finding = finding_for(evidence, None)
    assert finding.status == "not_checked"
    assert "--claim-standard-ms" in finding.reason


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim(32.0, 49.5), "loading and the first run counted into the mean of 10 runs"),
        (Claim(None, 360.0), "loading and the first run counted into 1 run"),
        (Claim(40.0, 60.0), "the first run counted into 1 run"),
        (Claim(24.0, 24.0), "the first run counted into the mean of 5 runs"),
    ],
)
def test_what_is_counted_in_is_named(evidence, claim, words):
    finding = finding_for(evidence, claim)
    assert finding.status == "found"
    assert words in finding.reason


def test_a_slower_variant_that_is_not_slower_is_found(evidence):
    finding = finding_for(evidence, Claim(10.0, 20.0))
    assert finding.status == "found"
    assert "not slower: 2.00 times the standard's time claimed, 0.75 times measured" in finding.reason


@pytest.mark.parametrize("claim", [Claim(10.0, 7.5), Claim(2.0, None), Claim(20.0, 5.0)])
def test_other_differences_are_left_open(evidence, claim):
    finding = finding_for(evidence, claim)
    assert finding.status == "not_checked"
    assert "neither loading nor the first run" in finding.reason


def test_unknown_first_runs_find_nothing(evidence):
    finding = finding_for(evidence, Claim(10.0, None), Times(20.0))
    assert finding.status == "not_checked"
