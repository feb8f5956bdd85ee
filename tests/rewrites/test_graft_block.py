"""A block of one model in another's place: right outputs, whatever names, types and bodies the models have."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from planting import Pair, cnn_feed, editable, flash, gather_evidence, tiny_bert, tiny_cnn, tiny_feed
from rewriting import outputs
from unlag.errors import UsageError
from unlag.model.graph import sweep
from unlag.rewrites.graft_block import graft_block


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
    return outputs(model, tiny_feed() if feed is None else feed)


def blocks_of(standard: onnx.ModelProto, variant: onnx.ModelProto, feed=None):
    return gather_evidence(Pair(standard, {}, variant, {}, feed=feed)).blocks


def grafted(standard: onnx.ModelProto, variant: onnx.ModelProto, blocks, place: int) -> onnx.ModelProto:
    host = editable(variant)
    before = None if place == 0 else (blocks[place - 1].variant_border, blocks[place - 1].standard_border)
    assert graft_block(host, editable(standard), before, (blocks[place].variant_border, blocks[place].standard_border))
    sweep(host)
    return ir.to_proto(host)


def spoiled(layer: str) -> onnx.ModelProto:
    """The standard with one weight of a layer negated."""
    model = editable(tiny_bert())
    name = next(name for name in model.graph.initializers if layer in name)
    value = model.graph.initializers[name]
    value.const_value = ir.tensor(-value.const_value.numpy(), name=name)
    return ir.to_proto(model)


def test_only_the_graft_of_the_spoiled_block_heals():
    standard, variant = tiny_bert(), spoiled("layer.1.output.dense.weight")
    blocks, wanted = blocks_of(standard, variant), run(standard)
    healed = []
    for place, block in enumerate(blocks):
        given = run(grafted(standard, variant, blocks, place))
        if np.abs(given[0] - wanted[0]).max() < 1e-4:
            healed.append(block.name)
    assert healed == ["layer 2 feed-forward"]


def test_every_block_of_a_quantized_half_precision_variant_can_be_replaced():
    standard, variant = tiny_bert(), flash(int8_weights=True, fp16_activations=True, segmented_qkv=True)
    blocks = blocks_of(standard, variant)
    assert len(blocks) == 5
    for place in range(len(blocks)):
        given = run(grafted(standard, variant, blocks, place))
        assert given[0].shape == run(standard)[0].shape
        assert np.isfinite(given[0]).all()


def test_the_last_block_keeps_the_name_of_the_output():
    blocks = blocks_of(tiny_bert(), flash(int8_weights=True))
    model = grafted(tiny_bert(), flash(int8_weights=True), blocks, len(blocks) - 1)
    assert [output.name for output in model.graph.output] == ["last_hidden_state"]


def test_convolutions_are_grafted_too():
    standard, variant = tiny_cnn(), tiny_cnn(1)
    blocks = blocks_of(standard, standard, cnn_feed())
    last = grafted(standard, variant, blocks, 0)
    assert not np.array_equal(run(last, cnn_feed())[0], run(variant, cnn_feed())[0])


def test_models_that_do_not_fit_are_refused():
    host, donor = editable(tiny_cnn()), editable(tiny_cnn())
    donor.opset_imports[""] = 11
    donor.graph.opset_imports[""] = 11
    with pytest.raises(UsageError, match="operator sets"):
        graft_block(host, donor, None, ("first.relu", "first.relu"))
    other = editable(tiny_cnn())
    other.graph.inputs[0].name = "picture"
    with pytest.raises(UsageError, match="picture"):
        graft_block(host, other, None, ("first.relu", "first.relu"))
    flat = editable(tiny_cnn())
    flat.graph.outputs[0].shape = ir.Shape([1, 1, 10])
    with pytest.raises(UsageError, match="dimensions"):
        graft_block(editable(tiny_cnn()), flat, None, ("logits", "logits"))


def test_what_a_body_captures_moves_with_it():
    def branch(name: str, factor: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("Mul", ["image", factor], [name])], name, [], [out])

    def model(constant: float) -> onnx.ModelProto:
        factor = onnx.numpy_helper.from_array(np.full((1, 3, 24, 24), constant, np.float32), "factor")
        other = onnx.numpy_helper.from_array(np.full((1, 3, 24, 24), -1.0, np.float32), "other")
        nodes = [
            helper.make_node("ReduceMax", ["image"], ["peak"], keepdims=0),
            helper.make_node("Cast", ["peak"], ["positive"], to=onnx.TensorProto.BOOL),
            helper.make_node(
                "If",
                ["positive"],
                ["chosen"],
                "if",
                then_branch=branch("a", "factor"),
                else_branch=branch("b", "other"),
            ),
            helper.make_node("Relu", ["chosen"], ["result"], "relu"),
        ]
        shapes = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 3, 24, 24]) for n in ("image", "result")]
        graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], [factor, other])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    host = editable(model(5.0))
    graft_block(host, editable(model(2.0)), None, ("chosen", "chosen"))
    sweep(host)
    feed = cnn_feed()
    assert run(ir.to_proto(host), feed)[0] == pytest.approx(np.maximum(2 * feed["image"], 0))
