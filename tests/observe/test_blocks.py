"""Borders, blocks and attention on real models, with names that share nothing."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from planting import LAYERS, Pair, cnn_feed, editable, flash, gather_evidence, tiny_bert, tiny_cnn
from unlag.model.facts import facts_of
from unlag.model.graph import insert_node
from unlag.observe.borders import find_borders


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with new names for every node and inner tensor."""
    copy = editable(model)
    for number, node in enumerate(copy.graph):
        node.name = f"node_{number * 7}"
        for place, value in enumerate(node.outputs):
            if not value.is_graph_output():
                value.name = f"t{number * 13}_{place}"
    return ir.to_proto(copy)


def test_a_transformer_has_a_block_for_each_attention_and_feed_forward():
    evidence = gather_evidence(Pair(tiny_bert(), {}, renamed(flash(int8_weights=True)), {}, profiled=True))
    names = [block.name for block in evidence.blocks]
    layers = [f"layer {n + 1} {part}" for n in range(LAYERS) for part in ("attention", "feed-forward")]
    assert names == ["embedding", *layers]
    assert all(block.variant_border.startswith(("t", "last")) for block in evidence.blocks)
    assert all(block.error is not None and 0 < block.error < 0.1 for block in evidence.blocks)


def test_block_times_add_up_to_the_profile():
    evidence = gather_evidence(Pair(tiny_bert(), {}, flash(segmented_qkv=True), {}, profiled=True))
    for side, times in (
        (evidence.standard, [block.standard_ms for block in evidence.blocks]),
        (evidence.variant, [block.variant_ms for block in evidence.blocks]),
    ):
        total_ms = sum(operator.time_ms for operator in side.profile.operators)
        assert abs(sum(times) - total_ms) < 1e-6 * total_ms
        assert min(times) > 0


def test_without_a_profile_blocks_have_errors_and_no_times():
    blocks = gather_evidence(Pair(tiny_bert(), {}, tiny_bert(), {})).blocks
    assert {(block.standard_ms, block.variant_ms, block.error) for block in blocks} == {(None, None, 0.0)}


def test_a_chain_of_convolutions_is_cut_between_them():
    evidence = gather_evidence(Pair(tiny_cnn(), {}, renamed(tiny_cnn()), {}, feed=cnn_feed()))
    assert [block.name for block in evidence.blocks] == [
        "convolution 1", "convolution 2", "convolution 3", "convolution 4", "linear",
    ]  # fmt: skip


def test_a_residual_is_no_border_before_it_is_added():
    model = editable(tiny_cnn())
    relu = next(node for node in model.graph if node.op_type == "Relu")
    pool = next(node for node in model.graph if node.op_type == "GlobalAveragePool")
    wide = next(node for node in model.graph if node.name == "second")
    pool.replace_input_with(
        0, insert_node(pool, "Concat", [pool.inputs[0], relu.outputs[0]], name="skip", attributes={"axis": 1})
    )
    borders = {border.tensor for border in find_borders(facts_of(model))}
    assert relu.outputs[0].name in borders
    assert wide.outputs[0].name not in borders
    assert "skip.out" in borders


def test_sharper_attention_shows_in_its_entropy():
    evidence = gather_evidence(Pair(tiny_bert(), {}, renamed(flash(drop_scale=True)), {}))
    assert len(evidence.attention) == LAYERS
    first = evidence.attention[0]
    assert first.variant_entropy < 0.8 * first.standard_entropy
    assert first.logit_error is not None
    assert first.logit_error > 0.5


def test_equal_attention_has_no_logit_error():
    for facts in gather_evidence(Pair(tiny_bert(), {}, tiny_bert(), {})).attention:
        assert facts.standard_entropy == facts.variant_entropy
        assert facts.logit_error == 0
