from __future__ import annotations

import numpy as np
import pytest

from planting import LAYERS, editable, flash, tiny_bert, tiny_feed
from rewriting import assert_keeps, assert_untouched, kinds, outputs, relative_error, rewritten
from unlag.rewrites.fuse_attention import fuse_attention
from unlag.rewrites.pack_projections import pack_projections


@pytest.mark.parametrize("traits", [{}, {"int8_weights": True}, {"int8_weights": True, "per_tensor": True}], ids=str)
def test_three_projections_become_one(traits):
    before = flash(segmented_qkv=True, **traits)
    after, changed = rewritten(before, pack_projections)
    assert changed == LAYERS
    assert kinds(after)["MatMul"] == kinds(before)["MatMul"] - 2 * LAYERS
    assert kinds(after)["Split"] == LAYERS
    assert_keeps(before, after)


def test_swapped_columns_would_be_noticed():
    before = flash(segmented_qkv=True)
    after, _changed = rewritten(before, pack_projections)
    split = next(node for node in after.graph.node if node.op_type == "Split")
    split.output[0], split.output[2] = split.output[2], split.output[0]
    assert relative_error(outputs(after, tiny_feed()), outputs(before, tiny_feed())) > 1e-2


def test_in_front_of_a_fused_operator_too():
    model = editable(flash(segmented_qkv=True, int8_weights=True))
    assert fuse_attention(model) == LAYERS
    assert pack_projections(model) == LAYERS


def test_projections_behind_casts_of_their_own_stay():
    assert_untouched(flash(segmented_qkv=True, fp16_activations=True), pack_projections)


def test_weights_that_are_inputs_stay():
    model = editable(flash(segmented_qkv=True))
    for name in [n for n in model.graph.initializers if n.endswith("query.weight")]:
        value = model.graph.initializers.pop(name)
        value.const_value = None
        model.graph.inputs.append(value)
    assert pack_projections(model) == 0


def test_a_packed_model_is_left_alone():
    assert_untouched(tiny_bert(), pack_projections)
    assert np.isfinite(outputs(tiny_bert(), tiny_feed())[0]).all()
