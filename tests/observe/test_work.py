"""Operations of executed operators, checked against counts made by hand."""

from __future__ import annotations

import pytest

from planting import Pair, cnn_feed, gather_evidence, tiny_bert, tiny_cnn
from unlag.measure.ceilings import Ceilings
from unlag.observe.work import flop_of, ideal_ms, roofline_share
from unlag.runtimes.contract import Kind, Operator

CEILINGS = Ceilings(flop_per_s=1e9, bytes_per_s=1e6)


def operator(op_type: str, kind: Kind, inputs: tuple, outputs: tuple, *, moved_bytes: int = 0):
    return Operator("n", op_type, kind, "float32", 1.0, "cpu", inputs, outputs, moved_bytes)


@pytest.mark.parametrize(
    ("op_type", "kind", "inputs", "outputs", "flop"),
    [
        ("MatMul", "gemm", ((2, 8, 16), (16, 32)), ((2, 8, 32),), 2 * 2 * 8 * 16 * 32),
        ("Gemm", "gemm", ((8, 16), (16, 32), (32,)), ((8, 32),), 2 * 8 * 16 * 32),
        ("Conv", "gemm", ((1, 3, 8, 8), (16, 3, 3, 3), (16,)), ((1, 16, 8, 8),), 2 * 16 * 64 * 27),
        ("QLinearConv", "gemm", ((1, 4, 8, 8), (), (), (4, 1, 3, 3), (), ()), ((1, 4, 8, 8),), 2 * 4 * 64 * 9),
        ("LSTM", "gemm", ((5, 2, 8), (1, 64, 8), (1, 64, 16)), ((5, 1, 2, 16),), 2 * 10 * (64 * 8 + 64 * 16)),
        ("MultiHeadAttention", "attention", ((1, 4, 8), (1, 6, 8), (1, 6, 8)), ((1, 4, 8),), 4 * 4 * 6 * 8),
        ("Relu", "activation", ((4, 5),), ((4, 5),), 20),
        ("Relu", "activation", (), (), 0),
    ],
)
def test_operations_are_counted(op_type, kind, inputs, outputs, flop):
    assert flop_of(operator(op_type, kind, inputs, outputs)) == flop


def test_the_higher_of_the_two_ceilings_binds():
    compute = operator("MatMul", "gemm", ((100, 100), (100, 100)), ((100, 100),), moved_bytes=100)
    memory = operator("Relu", "activation", ((100,),), ((100,),), moved_bytes=8000)
    assert ideal_ms(compute, CEILINGS) == pytest.approx(2.0)
    assert ideal_ms(memory, CEILINGS) == pytest.approx(8.0)
    assert roofline_share([compute, memory], CEILINGS) == pytest.approx(5.0)
    assert roofline_share([], CEILINGS) is None


def test_a_real_profile_has_the_work_of_its_model():
    evidence = gather_evidence(Pair(tiny_cnn(), {}, tiny_cnn(), {}, feed=cnn_feed(), profiled=True))
    convolutions = [o for o in evidence.standard.profile.operators if o.op_type in {"Conv", "FusedConv"}]
    by_hand = 2 * 24 * 24 * 9 * (3 * 16 + 16 * 32 + 32 + 32 * 32)
    assert sum(map(flop_of, convolutions)) == by_hand
    assert all(o.moved_bytes >= 4 * 24 * 24 * 2 for o in convolutions)


def test_a_looked_up_table_moves_only_its_rows():
    evidence = gather_evidence(Pair(tiny_bert(), {}, tiny_bert(), {}, profiled=True))
    lookups = [o for o in evidence.standard.profile.operators if o.op_type == "Gather"]
    assert lookups
    assert all(
        o.moved_bytes == 2 * 4 * o.output_shapes[0][0] * o.output_shapes[0][1] * 64
        for o in lookups
        if len(o.output_shapes[0]) == 3
    )
