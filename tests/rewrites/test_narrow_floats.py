from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from planting import cnn_feed, editable, tiny_bert, tiny_cnn, tiny_feed
from rewriting import kinds, outputs, parsed, relative_error
from unlag.rewrites.narrow_floats import DELICATE, Half, narrow_floats
from unlag.rewrites.widen_float16 import widen_float16

FLOAT, FLOAT16, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
TYPES = {"float16": FLOAT16, "bfloat16": BFLOAT16}
MODELS = {"bert": (tiny_bert(), tiny_feed()), "cnn": (tiny_cnn(), cnn_feed(2))}
NEAR = {"float16": 0.06, "bfloat16": 0.3}
"""Of the largest output; tiny_bert's weights are ten times as large as a trained network's."""


def narrowed(model: onnx.ModelProto, to: Half, kept: frozenset[str] = frozenset()) -> tuple[onnx.ModelProto, int]:
    draft, changed = narrow_floats(editable(model), to, kept)
    again, none = narrow_floats(draft, to, kept)
    assert none == 0
    assert again is draft
    after = ir.to_proto(draft)
    onnx.checker.check_model(after)
    return after, changed


def computed_in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same numbers, but sums as exact as a device's: the reference adds up in bfloat16."""
    draft = editable(model)
    for node in draft.graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == BFLOAT16:
            node.attributes["to"] = ir.AttrInt64("to", FLOAT)
    for value in (*draft.graph.initializers.values(), *(out for node in draft.graph for out in node.outputs)):
        if value.dtype == ir.DataType.BFLOAT16:
            value.dtype = ir.DataType.FLOAT
            if value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
    return ir.to_proto(draft)


@pytest.mark.parametrize("kept", [frozenset(), DELICATE], ids=["all", "delicate ones kept"])
@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_stay_near_and_keep_their_types(name, to, kept):
    model, feed = MODELS[name]
    after, changed = narrowed(model, to, kept)
    assert changed == sum(kinds(model)[kind] for kind in ("MatMul", "Gemm", "Conv"))
    assert [v.type.tensor_type.elem_type for v in after.graph.output] == [FLOAT]
    runnable = after if to == "float16" else computed_in_float32(after)
    assert 0 < relative_error(outputs(runnable, feed), outputs(model, feed)) < NEAR[to]


@pytest.mark.parametrize("to", TYPES)
def test_weights_of_products_are_half_as_large(to):
    after, _changed = narrowed(tiny_bert(), to, DELICATE)
    of_products = {node.input[1] for node in after.graph.node if node.op_type == "MatMul"}
    types = {t.name: t.data_type for t in after.graph.initializer}
    assert {types[name] for name in of_products & types.keys()} == {TYPES[to]}


def test_normalizations_and_softmax_are_computed_in_float32_where_they_are_kept():
    after, _changed = narrowed(tiny_bert(), "float16", DELICATE)
    types = {v.name: v.type.tensor_type.elem_type for v in after.graph.value_info}
    made = {node.op_type: types.get(node.output[0]) for node in after.graph.node}
    assert made["Softmax"] == made["LayerNormalization"] == FLOAT
    assert made["MatMul"] == FLOAT16
    everything, _changed = narrowed(tiny_bert(), "float16")
    assert kinds(everything)["Cast"] < kinds(after)["Cast"], "what is kept has casts around it"


def test_a_mask_of_the_least_number_stays_a_number():
    lowest = np.array(np.finfo(np.float32).min, np.float32)
    model = parsed(
        "g (float[2, 3] x) => (float[2, 3] y) { z = Sub(x, x) m = Mul(z, low) h = MatMul(x, w) y = Add(h, m) }",
        low=lowest,
        w=np.eye(3, dtype=np.float32),
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    after, changed = narrowed(model, "bfloat16")
    assert changed == 1
    np.testing.assert_array_equal(ReferenceEvaluator(after).run(None, {"x": x})[0], x)
    np.testing.assert_array_equal(outputs(narrowed(model, "float16")[0], {"x": x})[0], x)


def test_bfloat16_is_rounded_once():
    """Just below the middle of two bfloat16 numbers, and the middle itself once float16 has rounded it up."""
    weight = np.full((2, 2), 1 + 2.0**-7 + 2.0**-8 - 2.0**-12, np.float32)
    assert weight.astype(np.float16).astype(ml_dtypes.bfloat16)[0, 0] == 1 + 2.0**-6
    model = parsed("g (float[1, 2] x) => (float[1, 2] y) { y = MatMul(x, w) }", w=weight)
    after, _changed = narrowed(model, "bfloat16")
    held = onnx.numpy_helper.to_array(after.graph.initializer[0]).astype(np.float32)
    assert np.unique(held).tolist() == [1 + 2.0**-7]


@pytest.mark.parametrize("to", TYPES)
def test_a_model_without_products_in_float32_is_left_alone(to):
    alone = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    draft = editable(alone)
    assert narrow_floats(draft, to) == (draft, 0)


def test_bfloat16_is_not_mixed_with_float16():
    half, _changed = narrowed(tiny_bert(), "float16")
    draft = editable(half)
    assert narrow_floats(draft, "bfloat16") == (draft, 0)
    widen_float16(draft)
    assert narrow_floats(draft, "bfloat16")[1] > 0


def test_an_old_opset_has_no_bfloat16():
    model = parsed("g (float[1, 2] x) => (float[1, 2] y) { y = MatMul(x, w) }", w=np.eye(2, dtype=np.float32))
    model.opset_import[0].version = 12
    assert narrow_floats(editable(model), "bfloat16")[1] == 0
    assert narrow_floats(editable(model), "float16")[1] == 1
