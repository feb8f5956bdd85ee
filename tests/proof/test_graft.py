"""Grafts in a contest: the block that is spoiled is the one that heals, and one that can't be built says why."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import onnx
import onnx_ir as ir
import pytest

from measure.scripted import hurry, quiet
from planting import Pair, editable, gather_evidence, tiny_bert
from unlag.measure.bench import Bench, open_bench
from unlag.measure.compare import Compared, compare_at
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.proof.graft import graft_blocks


def slowed() -> onnx.ModelProto:
    """Layer 1's feed-forward activation computed forty times over."""
    model = editable(tiny_bert())
    erf = next(node for node in model.graph if "layer.0" in str(node.name) and node.op_type == "Erf")
    source = erf.inputs[0]
    for number in range(40):
        away = ir.node("Sinh", [source], name=f"away{number}")
        back = ir.node("Asinh", [away.outputs[0]], name=f"back{number}")
        model.graph.insert_before(erf, [away, back])
        source = back.outputs[0]
    erf.replace_input_with(0, source)
    return ir.to_proto(model)


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    quiet(monkeypatch)
    hurry(monkeypatch)
    onnx.save(tiny_bert(), tmp_path / "standard.onnx")
    onnx.save(slowed(), tmp_path / "variant.onnx")
    case = Case(
        standard=Variant("onnxruntime", str(tmp_path / "standard.onnx")),
        variant=Variant("onnxruntime", str(tmp_path / "variant.onnx")),
        rounds=2,
        max_rounds=2,
    )
    return open_bench(case, Shape(2, 16))


def test_the_slow_block_is_the_one_that_wins(bench):
    blocks = gather_evidence(Pair(tiny_bert(), {}, slowed(), {})).blocks
    grafts = {graft.block: graft for graft in graft_blocks(bench, compare_at(bench), blocks)}
    assert list(grafts) == [block.name for block in blocks]
    best, second = sorted(grafts.values(), key=lambda graft: -graft.won_ms.estimate)[:2]
    assert best.block == "layer 1 feed-forward"
    assert best.won_ms.estimate > 2 * second.won_ms.estimate
    assert best.won_points is None, "no labels"


def test_a_block_that_does_not_fit_says_why_and_the_others_go_on(bench):
    blocks = gather_evidence(Pair(tiny_bert(), {}, slowed(), {})).blocks[:2]
    host = editable(onnx.load(bench.case.variant.path))
    host.opset_imports[""] = host.graph.opset_imports[""] = 11
    onnx.save(ir.to_proto(host), bench.case.variant.path)
    grafts = graft_blocks(bench, Compared(compare_at_standard(bench), {}), blocks)
    assert all(graft.won_ms is None and "operator sets" in graft.reason for graft in grafts)


def compare_at_standard(bench: Bench):
    case = msgspec.structs.replace(bench.case, variant=bench.case.standard)
    return compare_at(replace(bench, case=case)).comparison
