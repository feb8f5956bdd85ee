"""Kinds, precisions and blocks of an explanation come from the evidence as they are."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest

from model_kinds import read
from planting import OFF, Pair, flash, gather_evidence, tiny_bert
from unlag.errors import Missing
from unlag.measure.ceilings import Ceilings
from unlag.measure.statistics import Interval
from unlag.observe.evidence import Evidence
from unlag.proof.graft import Graft
from unlag.proof.inside import blocks_of, folded_weights, kinds_of, precisions_of


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    pair = Pair(tiny_bert(), {}, flash(int8_weights=True, fp16_activations=True), OFF, profiled=True)
    return msgspec.structs.replace(gather_evidence(pair), ceilings=Ceilings(1e12, 1e12))


def test_kinds_hold_all_of_the_profiled_time(evidence):
    kinds = {kind.name: kind for kind in kinds_of(evidence)}
    for side, total in (
        (evidence.standard, sum(kind.standard_ms for kind in kinds.values())),
        (evidence.variant, sum(kind.variant_ms for kind in kinds.values())),
    ):
        assert total == pytest.approx(sum(operator.time_ms for operator in side.profile.operators))
    assert kinds["cast"].variant_ms > 3 * kinds["cast"].standard_ms, "the standard casts its mask only"
    assert kinds["dequantize"].standard_ms == 0
    assert kinds["dequantize"].standard_roofline is None
    assert 0 < kinds["gemm"].variant_roofline < 1, "nobody reaches 1 TFLOP/s here"


def test_without_ceilings_there_is_no_share(evidence):
    blind = msgspec.structs.replace(evidence, ceilings=Missing("not measured"))
    assert {kind.variant_roofline for kind in kinds_of(blind)} == {None}


def test_precisions_say_what_is_stored_and_what_computes(evidence):
    rows = {row.name: row for row in precisions_of(evidence)}
    assert rows["int8"].standard_weight_bytes == 0
    assert rows["int8"].variant_weight_bytes > 4 * 2 * 64 * 64
    assert rows["float32"].standard_weight_bytes > rows["float32"].variant_weight_bytes
    assert rows["float16"].variant_ms > 0
    assert rows["float16"].standard_ms == 0


def test_grafts_go_to_their_blocks(evidence):
    name = evidence.blocks[1].name
    blocks = {b.name: b for b in blocks_of(evidence, [Graft(name, Interval(1.0, 0.5, 1.5), None, "why")])}
    assert blocks[name].graft_ms == Interval(1.0, 0.5, 1.5)
    assert blocks[name].graft_reason == "why"
    assert all(block.graft_ms is None for other, block in blocks.items() if other != name)


def test_integer_weights_that_are_floats_by_the_time_it_runs_are_said(evidence):
    folding = {"config.session.disable_quant_qdq": "1"}
    folded = gather_evidence(Pair(tiny_bert(), {}, flash(int8_weights=True), folding))
    assert folded_weights(folded) == (
        "the variant's int8 weights are dequantized when it is loaded: its products compute in floats"
    )
    assert folded_weights(evidence) == "", "it dequantizes them at every run"
    assert folded_weights(gather_evidence(Pair(tiny_bert(), {}, tiny_bert(), {}))) == ""


def branching() -> onnx.ModelProto:
    """A large product in a branch."""
    weights = {name: np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) for name in "ab"}
    return read(
        """g (bool flag, float[512, 512] x) => (float[512, 512] y) {
            y = If (flag) <
                then_branch = t () => (float[512, 512] yes) { yes = MatMul (x, a) },
                else_branch = e () => (float[512, 512] no) { no = MatMul (x, b) }
            >
        }""",
        weights,
        opset=17,
        ir=8,
    )


def test_the_time_of_a_branch_is_that_of_what_runs_in_it():
    feed = {"flag": np.ones((), np.bool_), "x": np.ones((512, 512), np.float32)}
    evidence = gather_evidence(Pair(branching(), {}, branching(), {}, feed=feed, profiled=True))
    kinds = {kind.name: kind for kind in kinds_of(evidence)}
    assert kinds["control"].standard_ms < 0.5 * kinds["gemm"].standard_ms
    profile = evidence.standard.profile
    assert sum(operator.time_ms for operator in profile.operators) < 1.2 * profile.run_ms, "nothing counts twice"
