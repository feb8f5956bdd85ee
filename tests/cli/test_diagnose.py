"""Evidence in files: saved, diagnosed again, and refused where no measurement gives it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from planting import Pair, flash, gather_evidence, tiny_bert
from report import records
from unlag.cli import main
from unlag.measure.ceilings import Ceilings
from unlag.observe.evidence import Claim, EvidenceRecord
from unlag.report.record import read_evidence, read_record, to_json


@pytest.fixture(scope="module")
def evidence() -> EvidenceRecord:
    variant = flash(segmented_qkv=True, drop_scale=True)
    gathered = gather_evidence(Pair(tiny_bert(), {}, variant, {}, profiled=True, claim=Claim(1.0, 2.0)))
    return EvidenceRecord(comparison=records.comparison(), evidence=gathered)


def test_evidence_is_saved_and_diagnosed_again_without_measuring(monkeypatch, evidence, tmp_path, capsys):
    def explain(*_, keep, **__):
        keep(evidence)
        return records.explanation()

    monkeypatch.setattr("unlag.pipeline.explain", explain)
    saved = tmp_path / "evidence.json"
    main(["explain", "standard.onnx", "flash.onnx", "--save-evidence", str(saved)])
    assert read_evidence(saved) == evidence
    capsys.readouterr()
    assert main(["diagnose", str(saved), "--json", str(tmp_path / "why.json")]) == 1
    out = capsys.readouterr().out
    assert "Suspected, not measured" in out
    assert "--quick" not in out
    why = read_record(tmp_path / "why.json")
    statuses = {cause.id: cause.status for cause in why.causes}
    assert statuses["missing_attention_scale"] == "suspected"
    assert "proven" not in statuses.values()
    assert why.blocks
    assert why.kinds


def test_records_and_evidence_are_not_taken_for_each_other(evidence, tmp_path, capsys):
    record, saved = tmp_path / "run.json", tmp_path / "evidence.json"
    record.write_bytes(to_json(records.comparison()))
    saved.write_bytes(to_json(evidence))
    assert main(["diagnose", str(record)]) == 2
    assert "holds no evidence" in capsys.readouterr().err
    assert main(["report", str(saved)]) == 2
    assert "unlag diagnose" in capsys.readouterr().err
    saved.write_bytes(saved.read_bytes()[:1000])
    assert main(["diagnose", str(saved)]) == 2
    assert "not a whole JSON file" in capsys.readouterr().err


IMPOSSIBLE = {
    "evidence.gap_ms.low is 3, above its high of 1.1": ("evidence gap_ms low", 3.0),
    "comparison.slowdown.low is 9, above its high of 3.28": ("comparison slowdown low", 9.0),
    "comparison.slowdown.estimate is -1; a ratio of times is above zero": ("comparison slowdown estimate", -1.0),
    "comparison.standard.latency_ms.low is 99, above its high": ("comparison standard latency_ms low", 99.0),
    "comparison.variant.latency_ms.median is 0; it must be above zero": ("comparison variant latency_ms median", 0.0),
    "comparison.standard.load_ms is -1; it can't be below zero": ("comparison standard load_ms", -1.0),
    "comparison.samples.variant.turns[0].times_ns holds -5": ("comparison samples variant turns 0 times_ns 1", -5),
    "evidence.standard.latency_ms is 0; it must be above zero": ("evidence standard latency_ms", 0.0),
    "evidence.claim.variant_ms is 0; it must be above zero": ("evidence claim variant_ms", 0.0),
    "evidence.variant.profile.run_ms is -2;": ("evidence variant profile run_ms", -2.0),
    "evidence.variant.profile.operators[2].time_ms is -0.5;": ("evidence variant profile operators 2 time_ms", -0.5),
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_evidence_that_no_measurement_gives_is_refused_by_its_field(evidence, tmp_path, capsys, words):
    path, value = IMPOSSIBLE[words]
    content = msgspec.json.decode(msgspec.json.encode(evidence))
    *way, last = (int(step) if step.isdecimal() else step for step in path.split())
    holder = content
    for step in way:
        holder = holder[step]
    assert holder[last] != value
    holder[last] = value
    check_refused(content, tmp_path / "evidence.json", capsys, words)


def check_refused(content: dict, saved: Path, capsys, words: str) -> None:
    saved.write_bytes(msgspec.json.encode(content))
    assert main(["diagnose", str(saved)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"is not what was measured: {words}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("graph", ["standard.graph", "standard.executed", "variant.executed"])
def test_evidence_with_a_graph_that_was_cut_is_refused(evidence, tmp_path, capsys, graph):
    content = msgspec.json.decode(msgspec.json.encode(evidence))
    side, kind = graph.split(".")
    facts = content["evidence"][side][kind]
    nodes = facts["nodes"]
    facts["nodes"] = nodes[:-5]
    check_refused(content, tmp_path / "evidence.json", capsys, f"evidence.{graph}.nodes: no node makes the output")
    facts["nodes"] = nodes[5:]
    check_refused(content, tmp_path / "evidence.json", capsys, f"evidence.{graph}.nodes: ")


def test_evidence_with_impossible_ceilings_is_refused(evidence, tmp_path, capsys):
    saved = tmp_path / "evidence.json"
    seen = msgspec.structs.replace(evidence.evidence, ceilings=Ceilings(1e9, 1e9))
    content = msgspec.to_builtins(msgspec.structs.replace(evidence, evidence=seen))
    content["evidence"]["ceilings"]["flop_per_s"] = 0.0
    saved.write_bytes(msgspec.json.encode(content))
    assert main(["diagnose", str(saved)]) == 2
    assert "ceilings are above zero" in capsys.readouterr().err
