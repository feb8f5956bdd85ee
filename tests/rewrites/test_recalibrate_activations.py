from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from calibrating import judged, statically_quantized, stretch_scales, values_of
from planting import NEW_X86, Pair, cnn_feed, editable, gather_evidence, tiny_cnn
from rewriting import assert_untouched, outputs, parsed, relative_error, rewritten
from unlag.model.draft import Observed
from unlag.observe.judged import seen_of
from unlag.rewrites.recalibrate_activations import recalibrate_activations
from zoo.poor_calibration import plant

X = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)


def seen(model: onnx.ModelProto, feed: dict) -> Observed:
    return seen_of(values_of(model, feed))


def stretched(**factors: float) -> onnx.ModelProto:
    model = editable(statically_quantized(tiny_cnn(), cnn_feed()))
    assert stretch_scales(model, factors) == len(factors)
    return ir.to_proto(model)


@pytest.mark.parametrize("factor", [1 / 8, 100.0], ids=["clipped", "wide"])
def test_scales_are_as_they_were_calibrated(factor):
    good = statically_quantized(tiny_cnn(), cnn_feed())
    bad = stretched(**{"second.relu": factor})
    after, changed = rewritten(bad, partial(recalibrate_activations, seen=seen(bad, cnn_feed())))
    assert changed == 1
    ours, theirs, worst = (outputs(model, cnn_feed()) for model in (after, good, bad))
    assert relative_error(worst, theirs) > 0.03
    assert relative_error(ours, theirs) < 0.01


def test_kernels_stay_fused_and_biases_fit():
    evidence = gather_evidence(plant())
    after, changed = rewritten(plant().variant, partial(recalibrate_activations, seen=evidence.observed))
    assert changed == 2
    executed = gather_evidence(Pair(tiny_cnn(), {}, after, {}, isa=NEW_X86, feed=cnn_feed())).variant.executed
    assert sum(node.op_type == "QLinearConv" for node in executed.nodes) == 4
    assert not [judgement for judgement in judged(after, cnn_feed()) if judgement.fault]


def test_scales_that_fit_stay():
    model = statically_quantized(tiny_cnn(), cnn_feed())
    assert_untouched(model, partial(recalibrate_activations, seen=seen(model, cnn_feed())))


def test_nothing_is_done_where_nothing_was_seen():
    assert_untouched(plant().variant, partial(recalibrate_activations, seen=Observed()))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_codes_reach_from_end_to_end_in_every_type(dtype):
    info = np.iinfo(dtype)
    text = "g (float[16, 4] x) => (float[16, 4] y) { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"
    step = np.array(8 / (info.max - info.min) / 10, np.float32)
    zero = np.array((int(info.max) + int(info.min) + 1) // 2, dtype)
    before = parsed(text, s=step, z=zero)
    after, changed = rewritten(before, partial(recalibrate_activations, seen=seen(before, {"x": X})))
    assert changed == 1
    assert relative_error(outputs(after, {"x": X}), [X]) < 2 / 255
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    span = constants[after.graph.node[0].input[1]] * (float(info.max) - float(info.min))
    assert span == pytest.approx(X.max() - X.min(), rel=1e-4)


def test_a_constant_that_others_use_stays_theirs():
    text = """g (float[16, 4] x) => (float[16, 4] y, float[16, 4] w) <float s = {0.001}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)  w = Mul(x, s) }"""
    before = parsed(text)
    after, _changed = rewritten(before, partial(recalibrate_activations, seen=seen(before, {"x": X})))
    assert (outputs(after, {"x": X})[1] == outputs(before, {"x": X})[1]).all()


def test_moved_codes_keep_one_scale():
    text = """g (float[16, 4] x) => (float[4, 16] y) <float s = {0.001}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  t = Transpose <perm = [1, 0]> (d)
        tq = QuantizeLinear(t, s, z)  y = DequantizeLinear(tq, s, z) }"""
    before = parsed(text)
    after, changed = rewritten(before, partial(recalibrate_activations, seen=seen(before, {"x": X})))
    assert changed == 2
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    scales = {float(constants[n.input[1]]) for n in after.graph.node if n.op_type == "QuantizeLinear"}
    assert len(scales) == 1
    assert relative_error(outputs(after, {"x": X}), [X.T]) < 0.01


def test_the_standards_range_counts_where_clipping_further_up_hides_it():
    text = "g (float[16, 4] x) => (float[16, 4] y) { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"
    before = parsed(text, s=np.array(0.001, np.float32), z=np.array(0, np.int8))
    half = seen(before, {"x": X})
    whole = Observed(ranges=half.ranges, rms=half.rms, intended={"x": (-40.0, 40.0)})
    after, _changed = rewritten(before, partial(recalibrate_activations, seen=whole))
    assert relative_error(outputs(after, {"x": 10 * X}), [10 * X]) < 0.01
