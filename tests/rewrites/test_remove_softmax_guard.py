from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from planting import LAYERS, editable, tiny_bert, tiny_feed
from rewriting import assert_keeps, assert_untouched, kinds, outputs, rewritten
from unlag.model.graph import add_constant
from unlag.rewrites.remove_softmax_guard import remove_softmax_guard
from zoo.redundant_softmax_guard import guarded


def with_infinite_mask() -> onnx.ModelProto:
    model = editable(guarded())
    node = next(n for n in model.graph if n.name == "mask.bias")
    minus, zero = (
        add_constant(model.graph, np.array(v, np.float32), n) for v, n in ((-np.inf, "minus_infinity"), (0, "nothing"))
    )
    flag = ir.node("Cast", [node.inputs[0]], {"to": int(ir.DataType.BOOL)}, name="mask.flag")
    where = ir.node("Where", [flag.outputs[0], minus, zero], name="mask.infinite")
    model.graph.insert_before(node, [flag, where])
    node.outputs[0].replace_all_uses_with(where.outputs[0])
    return ir.to_proto(model)


def test_guards_behind_a_finite_mask_go():
    before = guarded()
    after, changed = rewritten(before, remove_softmax_guard)
    assert changed == LAYERS
    assert kinds(after) == kinds(tiny_bert())
    assert_keeps(before, after, 0.0)


def test_guards_behind_an_infinite_mask_stay_and_are_needed():
    model = with_infinite_mask()
    assert_untouched(model, remove_softmax_guard)
    feed = {**tiny_feed(1, 4), "attention_mask": np.zeros((1, 4), np.int64)}
    assert np.isfinite(outputs(model, feed)[0]).all()


def test_a_model_without_guards_is_left_alone():
    assert_untouched(tiny_bert(), remove_softmax_guard)
