from __future__ import annotations

import numpy as np
import onnx

from planting import tiny_bert
from rewriting import assert_keeps, assert_untouched, parsed, rewritten
from unlag.rewrites.flush_subnormals import flush_subnormals
from zoo.subnormal_numbers import NORMAL, SUBNORMAL, with_smallest

TINY = np.finfo(np.float32).tiny


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}


def test_subnormal_weights_become_zero_and_no_others():
    before = with_smallest(SUBNORMAL)
    after, changed = rewritten(before, flush_subnormals)
    given, kept = weights(before), weights(after)
    touched = {name for name, array in given.items() if not np.array_equal(array, kept[name])}
    assert changed == len(touched) > 0
    for name in touched:
        tiny = np.abs(given[name]) < TINY
        assert (kept[name][tiny] == 0).all()
        assert np.array_equal(kept[name][~tiny], given[name][~tiny])
    assert_keeps(before, after)


def test_constant_nodes_are_flushed_too():
    text = """g (float[2] x) => (float[2] y) {
        c = Constant <value = float[2] {1e-40, 1.0}> ()
        y = Add(x, c) }"""
    after, changed = rewritten(parsed(text), flush_subnormals)
    assert changed == 1
    held = next(a.t for n in after.graph.node if n.op_type == "Constant" for a in n.attribute)
    assert onnx.numpy_helper.to_array(held).tolist() == [0.0, 1.0]


def test_normal_numbers_and_other_types_are_left_alone():
    assert_untouched(with_smallest(NORMAL), flush_subnormals)
    assert_untouched(tiny_bert(), flush_subnormals)
    double = parsed("g (double[1] x) => (double[1] y) { y = Add(x, w) }", w=np.array([1e-310]))
    assert_untouched(double, flush_subnormals)
    edge = parsed("g (float[1] x) => (float[1] y) { y = Add(x, w) }", w=np.array([-TINY], np.float32))
    assert_untouched(edge, flush_subnormals)
