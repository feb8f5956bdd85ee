"""Attention, normalization and activation as torch's exporters write them today, fused and run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import editable
from rewriting import TIGHT, Rewrite, kinds, outputs, relative_error, rewritten
from torch_encoders import CAUSAL, EXPORTERS, HEADS, PADDINGS, WINDOWED, Recipe, feed
from unlag.rewrites.fuse_attention import fuse_attention
from unlag.rewrites.fuse_embedding_norm import fuse_embedding_norm
from unlag.rewrites.fuse_gelu import fuse_gelu
from unlag.rewrites.fuse_heads import fuse_heads
from unlag.rewrites.fuse_layer_norm import fuse_layer_norm
from unlag.rewrites.fuse_skip_layer_norm import fuse_skip_layer_norm

LAYERS = Recipe().layers
FEEDS = [feed(), feed(3, 11, seed=1), feed(1, 1)]
Case = tuple[str, int, str, str]

TRACED: list[Case] = [
    *(("traced", 17, "eager", mask) for mask in (*PADDINGS, *CAUSAL)),
    *(("traced", 17, "sdpa", mask) for mask in ("additive", "boolean", "looked_up", "causal_compared")),
    *(("traced", 14, "sdpa", mask) for mask in ("masked_fill", "infinite", "causal_triu")),
    *(("traced", 11, "eager", mask) for mask in ("additive", "boolean")),
    ("traced", 17, "batched", "additive"),
    ("traced", 11, "batched", "boolean"),
]
DYNAMO: list[Case] = [
    ("dynamo", 18, "eager", "additive"),
    ("dynamo", 18, "sdpa", "boolean"),
    ("dynamo", 18, "sdpa", "looked_up"),
    ("dynamo", 23, "sdpa", "boolean"),
]


def named(case: Case) -> str:
    return "_".join(str(part) for part in case)


def export(case: Case, **traits: object) -> onnx.ModelProto:
    exporter, opset, attention, mask = case
    return EXPORTERS[exporter](Recipe(attention=attention, mask=mask, **traits), opset)  # type: ignore[arg-type]  # traits


def fed(model: onnx.ModelProto, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Only what the model takes: exporters drop inputs that nothing reads."""
    return {value.name: given[value.name] for value in model.graph.input}


def fused(before: onnx.ModelProto, rewrite: Rewrite) -> onnx.ModelProto:
    after, changed = rewritten(before, rewrite)
    assert changed == LAYERS
    assert kinds(after)["Softmax"] == 0
    for given in FEEDS:
        feeds = fed(before, given)
        assert relative_error(outputs(after, feeds, passes=True), outputs(before, feeds)) <= TIGHT
    return after


def attributes(model: onnx.ModelProto, op_type: str) -> list[dict[str, object]]:
    nodes = [node for node in model.graph.node if node.op_type == op_type and node.domain == "com.microsoft"]
    return [{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in nodes]


@pytest.mark.parametrize("case", [*TRACED, *DYNAMO], ids=named)
def test_every_export_is_fused_with_its_projections(case):
    after = fused(export(case), fuse_attention)
    found = attributes(after, "Attention")
    assert len(found) == LAYERS
    assert all(attention["num_heads"] == HEADS for attention in found)
    assert all(attention.get("unidirectional", 0) == (case[3] in CAUSAL) for attention in found)


@pytest.mark.parametrize("case", [TRACED[0], ("traced", 17, "sdpa", "causal_table"), *DYNAMO], ids=named)
def test_every_export_is_fused_behind_its_projections(case):
    before = export(case)
    after = fused(before, fuse_heads)
    assert len(attributes(after, "MultiHeadAttention")) == LAYERS
    assert kinds(after)["MatMul"] == 6 * LAYERS


def test_padding_that_is_lost_would_be_noticed():
    after = fused(export(TRACED[0]), fuse_attention)
    for node in after.graph.node:
        if node.op_type == "Attention":
            node.input[3] = ""
    given = fed(after, FEEDS[1])
    assert relative_error(outputs(after, given), outputs(export(TRACED[0]), given)) > 1e-3


@pytest.mark.parametrize("mask", WINDOWED)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_window_over_neighbors_is_no_missing_and_no_causal_mask(mask, attention):
    """Shorter texts than the window show nothing of it."""
    before = export(("traced", 17, attention, mask))
    after = fused(before, fuse_heads)
    given = fed(before, feed(2, 30))
    assert relative_error(outputs(after, given), outputs(before, given)) <= TIGHT
    assert all("unidirectional" not in found for found in attributes(after, "MultiHeadAttention"))


@pytest.mark.parametrize(("exporter", "groups"), [(("traced", 17), 1), (("traced", 17), 2), (("dynamo", 18), 2)])
def test_grouped_queries_with_rotary_positions(exporter, groups):
    after = fused(export((*exporter, "sdpa", "causal_compared"), groups=groups, rotary=True), fuse_attention)
    assert [found["unidirectional"] for found in attributes(after, "MultiHeadAttention")] == [1] * LAYERS


def test_grouped_queries_without_rotary_positions_keep_their_padding():
    fused(export(("traced", 17, "eager", "boolean"), groups=2), fuse_attention)


def test_a_packed_projection():
    before = export(("traced", 14, "eager", "boolean"), packed=True)
    assert kinds(fused(before, fuse_attention))["MatMul"] == 3 * LAYERS
    assert kinds(fused(before, fuse_heads))["MatMul"] == kinds(before)["MatMul"] - 2 * LAYERS


@pytest.mark.parametrize("activation", ["gelu", "by hand", "tanh", "tanh by hand", "quick"])
def test_activations(activation):
    before = export(("traced", 17, "eager", "additive"), activation=activation)
    after, changed = rewritten(before, fuse_gelu)
    assert changed == LAYERS
    wanted = {"gelu": "Gelu", "by hand": "Gelu", "quick": "QuickGelu"}.get(activation, "FastGelu")
    assert kinds(after)[wanted] == LAYERS
    assert relative_error(outputs(after, FEEDS[1]), outputs(before, FEEDS[1])) <= TIGHT


@pytest.mark.parametrize(("exporter", "opset"), [("traced", 11), ("traced", 17), ("dynamo", 18)])
def test_normalizations_residuals_and_embeddings(exporter, opset):
    before = export((exporter, opset, "eager", "additive"))
    draft = editable(before)
    assert fuse_layer_norm(draft) == (2 * LAYERS + 1 if opset < 17 else 0)
    assert fuse_embedding_norm(draft) == 1
    assert fuse_skip_layer_norm(draft) == 2 * LAYERS
    after = ir.to_proto(draft)
    assert kinds(after)["LayerNormalization"] == 0
    for given in FEEDS:
        assert relative_error(outputs(after, given), outputs(before, given)) <= TIGHT


def test_root_mean_square_normalizations_with_their_residuals():
    before = export(("traced", 17, "eager", "boolean"), rotary=True)
    draft = editable(before)
    assert fuse_layer_norm(draft) == 2 * LAYERS
    assert fuse_skip_layer_norm(draft) == 2 * LAYERS
    after = ir.to_proto(draft)
    assert kinds(after)["SkipSimplifiedLayerNormalization"] == 2 * LAYERS
    for given in FEEDS:
        assert relative_error(outputs(after, given), outputs(before, given)) <= TIGHT
