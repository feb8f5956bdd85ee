# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import pytest

from planting import editable, flash, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.fold_dequantize import fold_dequantize

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 16)).astype(np.float32)
CODES = RNG.integers(-127, 128, (16, 8)).astype(np.int8)
SCALES = RNG.uniform(0.01, 0.1, 8).astype(np.float32)
UNSIGNED = (CODES.astype(np.int16) + 128).astype(np.uint8)

CHAINS = {
    "per tensor": ("w = DequantizeLinear(c, s)", {"c": CODES, "s": SCALES[0]}),
    "per column": ("w = DequantizeLinear<axis = 1>(c, s)", {"c": CODES, "s": SCALES}),
    "unsigned": ("w = DequantizeLinear<axis = 1>(c, s, z)", {"c": UNSIGNED, "s": SCALES, "z": np.full(8, 128, np.uint8)}),
    "blocks": ("w = DequantizeLinear<axis = 0, block_size = 4>(c, s)", {"c": CODES, "s": RNG.uniform(0.01, 0.1, (4, 8)).astype(np.float32)}),
    "cast and mul": ("f = Cast<to = 1>(c) w = Mul(f, s)", {"c": CODES, "s": SCALES}),
    "cast, sub and mul": ("f = Cast<to = 1>(c) d = Sub(f, z) w = Mul(d, s)", {"c": UNSIGNED, "s": SCALES, "z": np.float32(128)}),
    "transposed": ("d = DequantizeLinear<axis = 0>(c, s) w = Transpose<perm = [1, 0]>(d)", {"c": np.ascontiguousarray(CODES.T), "s": SCALES}),
    "half scale": ("h = DequantizeLinear<axis = 1>(c, s) w = Cast<to = 1>(h)", {"c": CODES, "s": SCALES.astype(np.float16)}),
    "constant node": ("s = Constant<value_float = 0.05>() w = DequantizeLinear(c, s)", {"c": CODES}),
}  # fmt: skip


def model_of(chain: str):
    text, constants = CHAINS[chain]
    return parsed(f"g (float[n, 16] x) => (float[n, 8] y) {{ {text} y = MatMul(x, w) }}", **constants)


@pytest.mark.parametrize("chain", CHAINS)
def test_every_spelling_becomes_one_constant_with_the_same_values(chain):
    before = model_of(chain)
    after, changed = rewritten(before, fold_dequantize)
    assert changed == 1
    assert kinds(after) == {"MatMul": 1}
    assert_keeps(before, after, 1e-6, x=X)


def test_a_wrong_scale_would_be_noticed():
    before = model_of("per column")
    after, _changed = rewritten(before, fold_dequantize)
    weight = next(t for t in after.graph.initializer)
    weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * np.float32(1.0001)).tobytes()
    assert relative_error(outputs(after, {"x": X}), outputs(before, {"x": X})) > 1e-5


def test_a_whole_model_keeps_its_outputs_and_its_looked_up_rows():
    before = flash(int8_weights=True, fp16_activations=True)
    after, changed = rewritten(before, fold_dequantize)
    assert changed == 8
    assert kinds(after)["DequantizeLinear"] == 2
    assert_keeps(before, after, 1e-6)


def test_a_shared_weight_is_folded_once():
    text = "g (float[n, 16] x) => (float[n, 8] y, float[n, 8] z) { w = DequantizeLinear(c, s) y = MatMul(x, w) z = MatMul(x, w) }"
    after, changed = rewritten(parsed(text, c=CODES, s=SCALES[0]), fold_dequantize)
    assert changed == 1
    assert len(after.graph.initializer) == 1


OPEN_CHAINS = {
    "codes are an input": ("int8[16, 8] c, float[n, 16] x", {"s": SCALES[0]}),
    "the scale is an input": ("float s, float[n, 16] x", {"c": CODES}),
}


@pytest.mark.parametrize("name", OPEN_CHAINS)
def test_what_is_not_constant_stays(name):
    inputs, constants = OPEN_CHAINS[name]
    text = f"g ({inputs}) => (float[n, 8] y) {{ w = DequantizeLinear(c, s) y = MatMul(x, w) }}"
    assert_untouched(parsed(text, **constants), fold_dequantize)


def test_a_weight_that_is_an_output_stays():
    assert_untouched(
        parsed("g (float x) => (float[16, 8] w) { w = DequantizeLinear(c, s) }", c=CODES, s=SCALES[0]), fold_dequantize
    )


def test_a_float_model_is_left_alone():
    assert_untouched(tiny_bert(), fold_dequantize)


def test_the_folded_weight_keeps_the_name_that_was_read():
    draft = editable(flash(int8_weights=True))
    read = {
        n.inputs[1].name
        for n in draft.graph
        if n.op_type == "MatMul" and n.inputs[1].producer() and n.inputs[1].producer().op_type == "DequantizeLinear"
    }
    fold_dequantize(draft)
    assert len(read) == 8
    assert read <= set(draft.graph.initializers)
