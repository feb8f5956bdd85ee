from __future__ import annotations

import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import editable, flash, tiny_bert
from rewriting import parsed
from unlag.observe.align import align_weights
from unlag.observe.evidence import WeightSource

QKV = "encoder.layer.{}.attention.self.qkv.weight"


def aligned(standard: onnx.ModelProto, variant: onnx.ModelProto) -> dict[str, WeightSource]:
    return align_weights(editable(standard), editable(variant))


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same weights under other names, last one first."""
    copy = editable(model)
    for number, (name, value) in enumerate(list(copy.graph.initializers.items())):
        copy.graph.initializers.pop(name)
        value.name = f"w{number}"
        value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
        copy.graph.register_initializer(value)
    return ir.to_proto(copy)


@pytest.mark.parametrize(
    "traits",
    [
        {},
        {"int8_weights": True},
        {"int8_weights": True, "per_tensor": True},
        {"fp16_activations": True},
        {"int8_weights": True, "per_tensor": True, "fp16_activations": True},
    ],
    ids=str,
)
def test_every_weight_is_found_however_it_is_stored(traits):
    found = aligned(tiny_bert(), flash(**traits) if traits else tiny_bert())
    assert len(found) == 8 + 2
    for name, source in found.items():
        assert name.startswith(source.name)
        assert source.start == 0


def test_separate_projections_are_columns_of_the_packed_one():
    found = aligned(tiny_bert(), flash(segmented_qkv=True, int8_weights=True))
    for layer in range(2):
        for number, part in enumerate(("query", "key", "value")):
            name = f"encoder.layer.{layer}.attention.self.{part}.weight.dequantize.out"
            assert found[name] == WeightSource(QKV.format(layer), 64 * number, 64 * number + 64)


def test_names_do_not_matter():
    model = renamed(flash(int8_weights=True))
    found = aligned(tiny_bert(), model)
    assert len(found) == 10
    assert {source.name for source in found.values()} == {
        source.name for source in aligned(tiny_bert(), tiny_bert()).values()
    }


def test_another_models_weights_are_not_found():
    assert aligned(tiny_bert(), tiny_bert(seed=1)) == {}


def test_a_weight_with_a_factor_folded_in_is_another_one():
    weight = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    text = "g (float[n, 32] x) => (float[n, 16] y) { y = MatMul(x, w) }"
    assert len(aligned(parsed(text, w=weight), parsed(text, w=weight * np.float32(1.001)))) == 1
    assert aligned(parsed(text, w=weight), parsed(text, w=weight * np.float32(0.18))) == {}


def test_a_weight_stored_turned_is_found():
    weight = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    standard = parsed("g (float[n, 32] x) => (float[n, 16] y) { y = MatMul(x, w) }", w=weight)
    turned = np.ascontiguousarray(weight.T)
    for body in ("v = Transpose<perm = [1, 0]>(t) y = MatMul(x, v)", "y = Gemm<transB = 1>(x, t)"):
        found = aligned(standard, parsed(f"g (float[n, 32] x) => (float[n, 16] y) {{ {body} }}", t=turned))
        assert list(found.values()) == [WeightSource("w", 0, 16)]


def test_large_models_align_fast():
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(768, 768)).astype(np.float32) for i in range(12)}
    body = " ".join(f"x{i + 1} = MatMul(x{i}, w{i})" for i in range(12))
    model = parsed(f"g (float[n, 768] x0) => (float[n, 768] x12) {{ {body} }}", **weights)
    standard, variant = ir.from_proto(model), ir.from_proto(model)
    start = time.perf_counter()
    assert len(align_weights(standard, variant)) == 12
    assert time.perf_counter() - start < 5
