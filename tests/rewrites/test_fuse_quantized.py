"""Fusions in graphs that somebody has quantized already, with codes and their scales in the middle of every pattern."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from planting import editable
from rewriting import kinds, outputs, relative_error, rewritten
from torch_encoders import Recipe, feed, traced
from unlag.rewrites.fuse_attention import fuse_attention
from unlag.rewrites.fuse_gelu import fuse_gelu
from unlag.rewrites.fuse_heads import fuse_heads
from unlag.rewrites.fuse_layer_norm import fuse_layer_norm
from unlag.rewrites.fuse_skip_layer_norm import fuse_skip_layer_norm

LAYERS = Recipe().layers
FEED = feed(3, 11, seed=1)
FORMS: dict[str, Mapping[str, object]] = {
    "dynamic": {},
    "dynamic, both factors": {"extra_options": {"MatMulConstBOnly": False}},
    "dynamic by column": {"per_channel": True, "reduce_range": True},
    "static pairs": {"quant_format": QuantFormat.QDQ},
    "static pairs around products": {"quant_format": QuantFormat.QDQ, "op_types_to_quantize": ["MatMul"]},
    "static operators": {"quant_format": QuantFormat.QOperator},
}
FUSABLE = [name for name in FORMS if name != "static operators"]


class Sentences(CalibrationDataReader):
    def __init__(self) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = iter([feed(2, 8, seed) for seed in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def exported() -> onnx.ModelProto:
    """Below opset 17, so that normalizations are spelled out too; with a mask that quantizers don't spoil."""
    return traced(Recipe(mask="mild_additive"), 14)


@cache
def quantized(form: str) -> onnx.ModelProto:
    logging.getLogger().setLevel(logging.ERROR)
    with TemporaryDirectory() as name:
        source, target = Path(name) / "float.onnx", Path(name) / "int8.onnx"
        onnx.save(exported(), source)
        if form.startswith("dynamic"):
            quantize_dynamic(source, target, **FORMS[form])
        else:
            quantize_static(source, target, Sentences(), **FORMS[form])
        return onnx.load(target)


def error(model: onnx.ModelProto) -> float:
    """To the model that was quantized."""
    return relative_error(outputs(model, FEED, passes=True), outputs(exported(), FEED))


@pytest.mark.parametrize("form", FUSABLE)
@pytest.mark.parametrize("rewrite", [fuse_attention, fuse_heads], ids=lambda r: r.__name__)
def test_attention_is_fused_behind_its_integer_projections(form, rewrite):
    before = quantized(form)
    after, changed = rewritten(before, rewrite)
    assert changed == LAYERS
    assert kinds(after)["MultiHeadAttention"] == LAYERS
    assert kinds(after)["Softmax"] == 0
    integers = {"MatMulInteger", "DequantizeLinear"} & set(kinds(before))
    assert all(kinds(after)[kind] for kind in integers), "the projections stay quantized"
    assert error(after) < 1.1 * error(before)


def test_products_of_codes_leave_nothing_to_hand_over():
    """Queries, keys and values are codes there, and so is what reads the context: no float to fuse between."""
    draft = editable(quantized("static operators"))
    assert fuse_heads(draft) == fuse_attention(draft) == 0
    assert kinds(ir.to_proto(draft)) == kinds(quantized("static operators"))


@pytest.mark.parametrize("form", FORMS)
def test_everything_around_attention(form):
    draft = editable(quantized(form))
    norms, gelus, residuals = fuse_layer_norm(draft), fuse_gelu(draft), fuse_skip_layer_norm(draft)
    after = ir.to_proto(draft)
    if form in FUSABLE:
        assert (norms, gelus, residuals) == (2 * LAYERS + 1, LAYERS, 2 * LAYERS)
    assert error(after) < 1.1 * error(quantized(form))
