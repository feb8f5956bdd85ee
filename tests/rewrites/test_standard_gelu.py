from __future__ import annotations

import onnx
import pytest

from planting import LAYERS, tiny_bert
from rewrites.test_fuse_gelu import SPELLINGS, X, model_of
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.standard_gelu import approximate_gelu, standard_gelu

EXACT = {name: body for name, body in SPELLINGS.items() if "tanh" not in name}
BY_TANH = {name: body for name, body in SPELLINGS.items() if "tanh" in name}
NEAR = 5e-4
"""By how much the approximation is off, of an output up to 6."""


def approximations(model: onnx.ModelProto) -> list[bytes]:
    return [a.s for node in model.graph.node if node.op_type == "Gelu" for a in node.attribute]


def of_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    next(opset for opset in copy.opset_import if not opset.domain).version = version
    return copy


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_becomes_the_standards_operator(name):
    before = model_of(SPELLINGS[name])
    after, changed = rewritten(before, standard_gelu)
    assert changed == 1
    assert kinds(after) == {"Gelu": 1}
    assert after.graph.node[0].domain == ""
    assert approximations(after) == ([b"tanh"] if name in BY_TANH else [])
    assert_keeps(before, after, 1e-6, x=X)


@pytest.mark.parametrize(("op_type", "by_tanh"), [("Gelu", False), ("FastGelu", True)])
def test_operators_of_the_runtime_become_the_standards(op_type, by_tanh):
    before = parsed(f"g (float[4, 16] x) => (float[4, 16] y) {{ y = com.microsoft.{op_type}(x) }}")
    after, changed = rewritten(before, standard_gelu)
    assert changed == 1
    assert approximations(after) == ([b"tanh"] if by_tanh else [])
    assert_keeps(before, after, 1e-6, x=X)


@pytest.mark.parametrize("name", EXACT)
def test_every_exact_one_is_approximated(name):
    before = model_of(EXACT[name])
    after, changed = rewritten(before, approximate_gelu)
    assert changed == 1
    assert approximations(after) == [b"tanh"]
    assert 1e-6 < relative_error(outputs(after, {"x": X}), outputs(before, {"x": X})) < NEAR


@pytest.mark.parametrize("operator", ["com.microsoft.Gelu", "Gelu"])
def test_operators_are_approximated_too(operator):
    before = parsed(f"g (float[4, 16] x) => (float[4, 16] y) {{ y = {operator}(x) }}")
    after, changed = rewritten(before, approximate_gelu)
    assert changed == 1
    assert 1e-6 < relative_error(outputs(after, {"x": X}), outputs(before, {"x": X})) < NEAR


def test_below_opset_20_the_runtimes_own_operator_approximates():
    before = of_opset(model_of(EXACT["by the inverse"]), 17)
    after, changed = rewritten(before, approximate_gelu)
    assert changed == 1
    assert kinds(after) == {"FastGelu": 1}
    assert relative_error(outputs(after, {"x": X}), outputs(before, {"x": X})) < NEAR


@pytest.mark.parametrize("name", EXACT)
def test_below_opset_20_there_is_no_standard_operator(name):
    assert_untouched(of_opset(model_of(SPELLINGS[name]), 17), standard_gelu)


@pytest.mark.parametrize("name", BY_TANH)
def test_what_is_approximate_already_is_not_approximated(name):
    assert_untouched(model_of(SPELLINGS[name]), approximate_gelu)


def test_an_operator_with_a_bias_stays():
    text = "g (float[4, 16] x, float[16] b) => (float[4, 16] y) { y = com.microsoft.FastGelu(x, b) }"
    assert_untouched(parsed(text), standard_gelu)


def test_half_precision_stays():
    text = "g (float16[4, 16] x) => (float16[4, 16] y) { y = com.microsoft.Gelu(x) }"
    assert_untouched(parsed(text), standard_gelu)
    assert_untouched(parsed(text), approximate_gelu)


def test_a_whole_model():
    after, changed = rewritten(tiny_bert(), standard_gelu)
    assert changed == LAYERS
    assert_keeps(tiny_bert(), after)
