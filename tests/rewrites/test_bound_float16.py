from __future__ import annotations

import numpy as np
import onnx

from planting import tiny_bert, tiny_feed
from rewriting import assert_untouched, outputs, parsed, relative_error, rewritten
from unlag.rewrites.bound_float16 import bound_float16
from zoo.half_precision_range import SANE, with_mask


def test_an_infinite_mask_becomes_finite_and_the_outputs_right():
    broken = with_mask(None)
    assert np.isnan(outputs(broken, tiny_feed())[0]).any()
    after, changed = rewritten(broken, bound_float16)
    assert changed == 1
    assert relative_error(outputs(after, tiny_feed()), outputs(tiny_bert(), tiny_feed())) < 1e-5


def test_both_signs_keep_theirs_and_nan_stays():
    held = np.array([np.inf, -np.inf, np.nan, 1.0], np.float16)
    model = parsed("g (float16[4] x) => (float16[4] y) { y = Add(x, w) }", w=held)
    after, changed = rewritten(model, bound_float16)
    assert changed == 1
    found = onnx.numpy_helper.to_array(after.graph.initializer[0])
    assert found.dtype == np.float16
    assert np.array_equal(found, np.array([65504, -65504, np.nan, 1.0], np.float16), equal_nan=True)


def test_constant_nodes_are_bounded_too():
    text = """g (float16[1] x) => (float16[1] y) {
        c = Constant ()
        y = Mul(x, c) }"""
    model = parsed(text)
    tensor = onnx.numpy_helper.from_array(np.array([-np.inf], np.float16))
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("value", tensor))
    after, changed = rewritten(model, bound_float16)
    assert changed == 1
    held = next(a.t for n in after.graph.node if n.op_type == "Constant" for a in n.attribute)
    assert onnx.numpy_helper.to_array(held).tolist() == [-65504.0]


def test_finite_constants_and_infinite_float32_are_left_alone():
    assert_untouched(with_mask(SANE), bound_float16)
    single = parsed("g (float[1] x) => (float[1] y) { y = Add(x, w) }", w=np.array([-np.inf], np.float32))
    assert_untouched(single, bound_float16)
