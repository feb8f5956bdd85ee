# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import editable, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, parsed, rewritten
from unlag.rewrites.unroll_loops import MOST_ITERATIONS, resolve_control_flow, unroll_loops
from zoo.control_flow import infect

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4)).astype(np.float32)
YES = np.ones((), bool)
W = RNG.standard_normal((5, 4, 4)).astype(np.float32)
STACKING = "y = Loop({count}, {going}) <body = b (int64 i, bool c) => (bool d, float[3, 4] o) {{ d = Identity(c) w = Gather(weights, i) o = MatMul(x, w) }}>"
CARRYING = "y = Loop({count}, {going}, x) <body = b (int64 i, bool c, float[3, 4] s) => (bool d, float[3, 4] o) {{ d = Identity(c) w = Gather(weights, i) m = MatMul(s, w) o = Tanh(m) }}>"
LEAVING = "y = Loop({count}, {going}, x) <body = b (int64 i, bool c, float[3, 4] s) => (bool d, float[3, 4] o) {{ o = Tanh(s) m = ReduceMax<keepdims = 0>(o) d = Less(m, level) }}>"
BOTH = "z, y = Loop({count}, {going}, x) <body = b (int64 i, bool c, float[3, 4] s) => (bool d, float[3, 4] o, float[3, 4] p) {{ d = Identity(c) w = Gather(weights, i) o = MatMul(s, w) p = Neg(o) }}>"
SCAN = "z, y = Scan<num_scan_inputs = 1, body = b (float[3, 4] s, float[4, 4] w) => (float[3, 4] o, float[3, 4] p) {{ o = MatMul(s, w) p = Neg(o) }}>(x, weights)"


def model_of(body: str, count: int = 5, inputs: str = "float[3, 4] x", opset: int = 21) -> onnx.ModelProto:
    numbers = {"five": np.array(count), "yes": YES, "weights": W, "level": np.float32(0.9)}
    filled = body.format(count="five", going="yes")
    used = {name: value for name, value in numbers.items() if name in filled}
    model = parsed(f"g ({inputs}) => (float y) {{ {filled} }}", **used)
    model.opset_import[0].version = opset
    return model


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.parametrize("body", [STACKING, CARRYING, BOTH, SCAN], ids=["stacking", "carrying", "both", "scan"])
def test_a_loop_is_written_out(body, opset):
    before = model_of(body, opset=opset)
    after, changed = rewritten(before, unroll_loops)
    assert changed == 1
    assert not {"Loop", "Scan"} & set(kinds(after))
    assert kinds(after)["MatMul"] == 5
    assert_keeps(before, after, 1e-6, x=X)


@pytest.mark.parametrize("body", [STACKING, CARRYING], ids=["stacking", "carrying"])
def test_one_iteration(body):
    before = model_of(body, 1)
    after, changed = rewritten(before, unroll_loops)
    assert changed == 1
    assert_keeps(before, after, 1e-6, x=X)


@pytest.mark.parametrize("count", [0, MOST_ITERATIONS + 1])
def test_none_and_too_many_iterations_stay(count):
    assert_untouched(model_of(CARRYING, count), unroll_loops)


def test_a_loop_that_may_end_early_stays():
    assert_untouched(model_of(LEAVING), unroll_loops)


def test_a_count_that_a_caller_gives_stays():
    model = model_of(CARRYING, inputs="float[3, 4] x, int64 five")
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "five"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    assert_untouched(model, unroll_loops)


def test_a_scan_over_an_axis_of_unknown_size_stays():
    model = parsed(f"g (float[3, 4] x, float[n, 4, 4] weights) => (float y) {{ {SCAN.format()} }}")
    assert_untouched(model, unroll_loops)


def test_branches_inside_of_a_loop_wait_for_nothing():
    body = CARRYING.replace(
        "o = Tanh(m)",
        "o = If(yes) <then_branch = t () => (float[3, 4] u) {{ u = Tanh(m) }}, else_branch = e () => (float[3, 4] v) {{ v = Neg(m) }}>",
    )
    assert_untouched(model_of(body), resolve_control_flow)


def test_a_loop_inside_of_a_branch():
    loop = CARRYING.format(count="five", going="yes").replace("y = Loop", "t = Loop")
    text = f"g (float[3, 4] x) => (float[3, 4] y) {{ y = If(yes) <then_branch = t1 () => (float[3, 4] t) {{ {loop} }}, else_branch = e1 () => (float[3, 4] v) {{ v = Neg(x) }}> }}"
    before = parsed(text, five=np.array(5), yes=YES, weights=W)
    after, changed = rewritten(before, resolve_control_flow)
    assert changed == 2
    assert kinds(after)["Tanh"] == 5
    assert_keeps(before, after, 1e-6, x=X)


def test_a_whole_model():
    draft = editable(tiny_bert())
    count = infect(draft)
    before = ir.to_proto(draft)
    assert kinds(before)["Loop"] == count > 0
    after, changed = rewritten(before, unroll_loops)
    assert changed == count
    assert kinds(after)["Loop"] == 0
    assert_keeps(before, after)
