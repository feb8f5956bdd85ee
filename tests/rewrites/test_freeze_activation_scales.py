from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import tiny_bert, tiny_feed
from rewriting import assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.freeze_activation_scales import freeze_activation_scales
from zoo import batch_dependent_scales, saturating_integers

ONE = """g (float[n, 4] x) => (float[n, 4] y) {
    q, s, z = DynamicQuantizeLinear(x)
    y = DequantizeLinear(q, s, z) }"""


def ranges_of(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    names = [n.input[0] for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"]
    seen = onnx.ModelProto.FromString(model.SerializeToString())
    del seen.graph.output[:]
    for name in names:
        seen.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return {name: (float(v.min()), float(v.max())) for name, v in zip(names, outputs(seen, feed), strict=True)}


def frozen(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> tuple[onnx.ModelProto, int]:
    ranges = ranges_of(model, feed)
    return rewritten(model, lambda draft: freeze_activation_scales(draft, ranges))


@pytest.mark.parametrize("integer_kernels", [False, True])
def test_a_row_no_longer_depends_on_its_neighbors(integer_kernels):
    model = saturating_integers.plant().variant if integer_kernels else batch_dependent_scales.infected()
    batch = tiny_feed(8)
    alone = {name: array[:1] for name, array in batch.items()}
    assert not np.array_equal(outputs(model, alone)[0], outputs(model, batch)[0][:1])
    after, changed = frozen(model, batch)
    assert changed == kinds(model)["DynamicQuantizeLinear"] > 0
    assert kinds(after)["DynamicQuantizeLinear"] == 0
    for passes in (False, True):
        one, among = outputs(after, alone, passes=passes)[0], outputs(after, batch, passes=passes)[0][:1]
        assert relative_error([one], [among]) < 1e-5


def test_the_run_that_was_seen_keeps_its_scales():
    model, batch = batch_dependent_scales.infected(), tiny_feed(8)
    after, _changed = frozen(model, batch)
    reference = outputs(tiny_bert(), batch)
    lost = relative_error(outputs(model, batch), reference)
    assert relative_error(outputs(after, batch), reference) < 1.5 * lost


@pytest.mark.parametrize(("least", "largest"), [(-1.0, 3.0), (0.5, 3.0), (-3.0, -1.0), (0.0, 0.0)])
def test_zero_has_a_code_of_its_own(least, largest):
    model = parsed(ONE)
    after, changed = rewritten(model, lambda draft: freeze_activation_scales(draft, {"x": (least, largest)}))
    assert changed == 1
    values = np.array([[least, largest, 0.0, (least + largest) / 2]], np.float32)
    error = np.abs(outputs(after, {"x": values})[0] - values)
    assert error[0, 2] == 0
    assert error.max() <= (max(largest, 0) - min(least, 0)) / 255


@pytest.mark.parametrize("ranges", [{}, {"y": (0.0, 1.0)}, {"x": (0.0, float("inf"))}, {"x": (float("nan"), 1.0)}])
def test_unknown_ranges_stay_dynamic(ranges):
    assert_untouched(parsed(ONE), lambda model: freeze_activation_scales(model, ranges))


def test_a_scale_that_is_an_output_stays_dynamic():
    text = ONE.replace("=> (float[n, 4] y)", "=> (float[n, 4] y, float s)")
    assert_untouched(parsed(text), lambda model: freeze_activation_scales(model, {"x": (0.0, 1.0)}))
