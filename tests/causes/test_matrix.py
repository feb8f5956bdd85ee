"""Every cause against every planted model and every healthy twin."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import onnx_ir as ir
import pytest

from planting import OLD_X86, Pair, editable, fake_host, gather_evidence, tiny_bert, tiny_cnn
from unlag.causes.contract import Cause, diagnose, find_causes
from unlag.model.graph import save_model
from unlag.model.variant import Variant
from unlag.observe.evidence import Evidence
from unlag.runtimes.onnxruntime import RUNTIME

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


def zoo_module(name: str) -> ModuleType:
    return importlib.import_module(f"zoo.{name}")


INFECTING = [name for name in ZOO if hasattr(zoo_module(name), "infect")]


@pytest.mark.parametrize("name", INFECTING)
def test_can_be_planted_in_a_small_model_that_still_loads(name, monkeypatch, tmp_path):
    zoo = zoo_module(name)
    if hasattr(zoo, "read_host"):  # what only some CPUs suffer from is planted on those alone
        monkeypatch.setattr(zoo, "read_host", lambda: fake_host(OLD_X86))
    model = first_planted(zoo)
    assert model is not None
    options = getattr(zoo, "STANDARD_OPTIONS", {}) | getattr(zoo, "VARIANT_OPTIONS", {})
    save_model(model, tmp_path / "planted.onnx")
    RUNTIME.open(Variant("onnxruntime", str(tmp_path / "planted.onnx"), options), 1)


def first_planted(zoo: ModuleType) -> ir.Model | None:
    """The first small model with the cause in at least one place."""
    for standard in (tiny_bert, tiny_cnn, lambda: zoo.plant().standard):
        model = editable(standard())
        if zoo.infect(model) > 0:
            return model
    return None


@pytest.mark.parametrize("name", sorted(set(ZOO) - set(INFECTING)))
def test_what_no_edit_plants_says_why(name):
    text = (Path(__file__).parents[1] / "zoo" / f"{name}.py").read_text()
    assert re.search(r"no `*infect`*: \w+", text, re.IGNORECASE)
