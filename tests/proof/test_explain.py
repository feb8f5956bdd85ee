"""The whole proof on a real runtime: two causes planted in a small BERT, found, measured and added up."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import onnx
import psutil
import pytest

from measure.scripted import hurry, quiet
from proof.remedies import nothing, suspect
from unlag import pipeline
from unlag.causes.contract import Cause
from unlag.demo.bert import BertConfig, build_bert_from, random_weights
from unlag.demo.flash import NOTHING, make_flash
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.observe.evidence import Evidence
from unlag.proof import explain
from unlag.proof.explanation import Explanation
from unlag.report.record import parse_record, to_json

CONFIG = BertConfig(
    vocab_size=100,
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=64,
)
"""Wide enough that its weights, dequantized at every run, cost ten times what multiplying by them does."""
PLANTED = ("dequantized_weights", "disabled_graph_passes")


@pytest.fixture(scope="module")
def explanation(tmp_path_factory) -> Explanation:
    folder = tmp_path_factory.mktemp("explain")
    standard = build_bert_from(CONFIG, random_weights(CONFIG))
    onnx.save(standard, folder / "standard.onnx")
    recipe = msgspec.structs.replace(NOTHING, int8_weights=True, extra_copies=True)
    onnx.save(make_flash(standard, recipe), folder / "flash.onnx")
    case = Case(
        standard=Variant("onnxruntime", str(folder / "standard.onnx")),
        variant=Variant("onnxruntime", str(folder / "flash.onnx"), {"optimization": "off"}),
        shapes=(Shape(1, 16),),
        rounds=3,
        max_rounds=3,
    )
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.MonkeyPatch.context() as monkeypatch:
        quiet(monkeypatch)
        hurry(monkeypatch, min_turn_ms=60.0, min_runs=5)
        explained = pipeline.explain(case)
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
    return explained


def test_the_planted_causes_are_proven(explanation):
    assert explanation.comparison.verdict.speed == "slower"
    assert explanation.comparison.slowdown.estimate > 3
    causes = {cause.id: cause for cause in explanation.causes}
    for name in PLANTED:
        assert causes[name].status == "proven", causes[name].reason
        assert causes[name].cost_ms.low > 0
        assert causes[name].remedy is not None
        assert 0.25 < causes[name].share_of_gap < 0.75


def test_either_remedy_wins_most_of_it_alone_and_nearly_nothing_last(explanation):
    """With the passes on, the runtime itself dequantizes the weights once."""
    causes = {cause.id: cause for cause in explanation.causes}
    gap_ms = explanation.reconciliation.gap_ms.estimate
    for name in PLANTED:
        assert causes[name].first_in_ms.estimate > 0.5 * gap_ms
        assert abs(causes[name].last_out_ms.estimate) < 0.3 * gap_ms
    assert any(knot.causes == PLANTED and "either remedy alone" in knot.sentence for knot in explanation.knots)


def test_the_causes_add_up_to_the_gap(explanation):
    parts = explanation.reconciliation
    total = parts.explained_ms.estimate + parts.interaction_ms.estimate + parts.unexplained_ms.estimate
    assert total == pytest.approx(parts.gap_ms.estimate, rel=1e-6)
    assert parts.explained_ms.estimate > 0.6 * parts.gap_ms.estimate
    assert abs(parts.unexplained_ms.estimate) < 0.25 * parts.gap_ms.estimate


def test_nothing_else_is_blamed(explanation):
    for cause in explanation.causes:
        if cause.status == "proven" and cause.id not in PLANTED:
            assert cause.share_of_gap < 0.15, cause
        assert cause.reason
    assert {cause.status for cause in explanation.causes} <= {"proven", "ruled_out", "not_checked"}


def test_the_time_is_where_the_dequantizing_is(explanation):
    first = explanation.kinds[0]
    assert first.name == "dequantize"
    assert first.variant_ms > 3 * first.standard_ms


def test_the_record_round_trips(explanation):
    assert parse_record(to_json(explanation), "run.json") == explanation


def test_a_detector_that_raises_has_failed_and_the_others_go_on(monkeypatch):
    def broken(evidence: Evidence) -> None:
        raise KeyError(evidence)

    healthy = suspect("healthy", nothing).cause
    faulty = Cause("faulty", "x", "graph", frozenset({"speed"}), frozenset(), broken, ())
    monkeypatch.setattr(explain, "find_causes", lambda: (faulty, healthy))
    side = SimpleNamespace(variant=Variant("onnxruntime", "model.onnx"))
    anywhere = SimpleNamespace(standard=side, variant=side)
    findings = {cause.id: finding for cause, finding in explain.diagnose_all(anywhere)}
    assert findings["faulty"].status == "failed"
    assert "the detector raised KeyError" in findings["faulty"].reason
    assert findings["healthy"].status == "found"
