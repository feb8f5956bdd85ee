"""Borders, blocks and attention on real models, with names that share nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from planting import LAYERS, OFF, Pair, cnn_feed, editable, flash, gather_evidence, tiny_bert, tiny_cnn
from unlag.model.facts import GraphFacts, Node, facts_of
from unlag.model.graph import insert_node
from unlag.model.workload import TensorInfo
from unlag.observe.blocks import find_blocks
from unlag.observe.borders import find_borders, in_order
from unlag.observe.evidence import Side
from unlag.observe.placed import operator_spans
from unlag.proof.inside import untimed_blocks
from unlag.runtimes.contract import Operator, Profile


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


def quantized_cnn() -> onnx.ModelProto:
    """The tiny CNN in QDQ form, calibrated on one image."""

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [cnn_feed()]

        def get_next(self):
            return self.left.pop() if self.left else None

    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        onnx.save(tiny_cnn(), source)
        quantize_static(source, path, Images(), quant_format=QuantFormat.QDQ)
        return onnx.load(path)


def unnamed(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = editable(model)
    for node in copy.graph:
        node.name = ""
    return ir.to_proto(copy)


def convolutions(side: Side) -> list[Operator]:
    return [operator for operator in side.profile.operators if operator.op_type in {"Conv", "FusedConv", "QLinearConv"}]


@pytest.mark.parametrize(
    "variant", [tiny_cnn, quantized_cnn, lambda: unnamed(tiny_cnn())], ids=["blocked", "nhwc", "unnamed"]
)
def test_convolutions_count_in_their_own_blocks_whatever_the_layout_names_them(variant):
    evidence = gather_evidence(Pair(unnamed(tiny_cnn()), {}, variant(), {}, feed=cnn_feed(), profiled=True))
    names = {operator.name for side in (evidence.standard, evidence.variant) for operator in side.profile.operators}
    assert any(name.endswith("_nchwc") for name in names), "without renamed nodes this would test nothing"
    for side, times in (
        (evidence.standard, [block.standard_ms for block in evidence.blocks]),
        (evidence.variant, [block.variant_ms for block in evidence.blocks]),
    ):
        assert len(convolutions(side)) == len(evidence.blocks) - 1
        for time_ms, convolution in zip(times, convolutions(side), strict=False):
            assert time_ms >= convolution.time_ms
    assert untimed_blocks(evidence) == ()


def test_a_side_of_which_nothing_can_be_told_has_no_times_and_a_reason():
    evidence = gather_evidence(Pair(tiny_cnn(), {}, tiny_cnn(), OFF, feed=cnn_feed(), profiled=True))
    side = evidence.standard
    nodes = tuple(
        msgspec.structs.replace(
            node,
            name=f"a{number}",
            inputs=tuple(f"b.{name}" for name in node.inputs),
            outputs=tuple(f"b.{name}" for name in node.outputs),
        )
        for number, node in enumerate(side.executed.nodes)
    )
    names = {old.name: new.name for old, new in zip(side.executed.nodes, nodes, strict=True)}
    operators = tuple(msgspec.structs.replace(o, name=names[o.name]) for o in side.profile.operators)
    strange = msgspec.structs.replace(
        side,
        executed=msgspec.structs.replace(side.executed, nodes=nodes),
        profile=msgspec.structs.replace(side.profile, operators=operators),
    )
    blocks = find_blocks(strange, evidence.variant, evidence.pairs)
    assert {block.standard_ms for block in blocks} == {None}
    assert all(block.variant_ms for block in blocks)
    (reason,) = untimed_blocks(msgspec.structs.replace(evidence, standard=strange, blocks=blocks))
    assert reason.startswith("the standard's time can't be split by block")


def node(name: str, reads: str, makes: str, op_type: str = "Relu", depth: int = 0) -> Node:
    return Node(name, op_type, "", tuple(reads.split()), tuple(makes.split()), {}, depth)


def graph_of(*nodes: Node) -> GraphFacts:
    info = TensorInfo("x", "float32", (1,))
    return GraphFacts({"": 17}, (info,), (msgspec.structs.replace(info, name=nodes[-1].outputs[0]),), nodes, {}, {})


def test_a_branch_comes_behind_what_its_body_reads():
    early = graph_of(
        node("if", "x", "z", "If"), node("in", "h", "z2", depth=1), node("a", "x", "h"), node("b", "z", "y")
    )
    ordered = in_order(early)
    assert [n.name for n in ordered.nodes] == ["a", "if", "in", "b"]
    assert in_order(ordered) is ordered
    circle = graph_of(node("a", "z", "h"), node("b", "h", "z"))
    assert in_order(circle) == circle


def test_a_name_counts_only_between_what_is_read_and_what_reads_it():
    file = graph_of(node("move", "x", "a"), node("first", "a", "b"), node("second", "b", "c"), node("last", "c", "y"))
    executed = graph_of(
        node("n0", "x", "a"), node("second_token_7", "a", "new"), node("move_token_1", "new", "b"), node("n3", "b", "y")
    )
    assert operator_spans(profile_of(executed), executed, file) == [(0, 0), (0, 1), (1, 1), (3, 3)]
    renamed = graph_of(node("n0", "x", "a"), node("first_token_7", "a", "new"), node("n3", "new", "y"))
    assert operator_spans(profile_of(renamed), renamed, file)[1] == (1, 1)


def profile_of(executed: GraphFacts) -> Profile:
    operators = tuple(Operator(n.name, n.op_type, "other", "float32", 1.0, "cpu", (), ()) for n in executed.nodes)
    return Profile(operators, 1.0 * len(operators), 1)
