from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from calibrating import judged, values_of
from rewriting import parsed
from unlag.model.draft import Observed
from unlag.model.facts import GraphIndex, facts_of
from unlag.observe.judged import seen_of
from unlag.rewrites.activation_fit import judge_activations

X = np.random.default_rng(0).standard_normal((256, 16)).astype(np.float32)
LARGEST = float(np.abs(X).max())


def fault(behind: str, scale: float, zero: int = 0, dtype: str = "int8", **feed: np.ndarray) -> str | None:
    text = f"""g (float[256, 16] x) => (float[256, 16] y) {{
        {behind.replace("PAIR", "q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)")} }}"""
    model = parsed(text, s=np.array(scale, np.float32), z=np.array(zero, dtype))
    (judgement,) = judged(model, feed or {"x": X})
    return judgement.fault


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1.0, None), (0.6, None), (4.0, None), (1 / 8, "clipped"), (16.0, "wide")],
)
def test_range_and_codes(factor, expected):
    assert fault("a = Neg(x)  PAIR  y = Neg(d)", factor * LARGEST / 127) == expected


def test_few_large_values_take_the_codes_of_all_others():
    x = X.copy()
    x[0, 0] = 120
    assert fault("a = Neg(x)  PAIR  y = Neg(d)", 120 / 127, x=x) == "rounded"
    assert fault("a = Neg(x)  PAIR  y = Neg(d)", 120 / 32767, dtype="int16", x=x) is None


def test_a_mask_may_be_clipped_in_front_of_a_softmax():
    x = X.copy()
    x[:, 8:] = -10000
    assert fault("a = Neg(x)  b = Neg(a)  PAIR  y = Neg(d)", LARGEST / 127, x=x) == "clipped"
    pair = "q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)"
    assert fault(f"n = Abs(x)  a = Sub(x, n)  {pair}  y = Softmax(d)", 2 * LARGEST / 127, x=x) is None


def test_codes_may_do_a_relus_work():
    assert fault("a = Neg(x)  PAIR  y = Neg(d)", LARGEST / 255, dtype="uint8") is None
    assert fault("a = Neg(x)  PAIR  y = Neg(d)", LARGEST / 255 / 8, dtype="uint8") == "clipped"


def test_the_range_of_a_softmax_is_its_own():
    assert fault("a = Softmax(x)  PAIR  y = Neg(d)", 1 / 32, dtype="uint8") is None


def test_a_clip_that_the_codes_took_over_is_known_by_the_standard():
    text = """g (float[256, 16] x) => (float[256, 16] y) <float s = {0.002}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Neg(d) }"""
    index = GraphIndex(facts_of(ir.from_proto(parsed(text))))
    seen = seen_of(values_of(parsed(text), {"x": X}))
    capped = Observed(ranges=seen.ranges, rms=seen.rms, intended={"d": (0.0, 0.51)})
    assert [j.fault for j in judge_activations(index, seen)] == ["clipped"]
    assert [j.fault for j in judge_activations(index, capped)] != ["clipped"]


def test_codes_that_kernels_read_are_not_judged():
    text = """g (float[256, 16] x) => (float[256, 16] y) <float s = {0.0001}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)  a = com.microsoft.QLinearAdd(q, s, z, q, s, z, s, z)
        y = DequantizeLinear(a, s, z) }"""
    assert judged(parsed(text), {"x": X}) == []


def test_a_tensor_of_zeros_has_no_fault():
    assert fault("a = Neg(x)  PAIR  y = Neg(d)", 0.01, x=np.zeros_like(X)) is None
