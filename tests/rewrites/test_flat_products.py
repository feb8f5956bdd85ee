from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from planting import LAYERS, editable, tiny_bert, tiny_cnn, tiny_feed
from rewriting import assert_untouched, outputs, relative_error, rewritten
from unlag.rewrites.fix_dimensions import fix_dimensions
from unlag.rewrites.flat_products import flat_products

PRODUCTS = 4
"""Of a layer, besides those of attention: queries with keys and values, output, and two of the feed-forward."""


def fixed_bert(batch: int) -> onnx.ModelProto:
    model = editable(tiny_bert())
    fix_dimensions(model, {name: array.shape for name, array in tiny_feed(batch, 8).items()})
    return ir.to_proto(model)


def counted(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("batch", [1, 3])
def test_products_with_weights_get_two_axes_and_their_bias(batch):
    before = fixed_bert(batch)
    after, changed = rewritten(before, flat_products)

    assert changed == counted(after)["Gemm"] == PRODUCTS * LAYERS
    assert counted(after)["MatMul"] == counted(before)["MatMul"] - changed
    assert counted(before)["Add"] - counted(after)["Add"] == changed, "every bias is in its Gemm"
    # into two axes in front of the first layer, back behind the last, and heads split and joined as before
    assert counted(after)["Reshape"] == counted(before)["Reshape"] + 2
    assert relative_error(outputs(after, tiny_feed(batch, 8)), outputs(before, tiny_feed(batch, 8))) < 2e-5


def test_everything_between_products_stays_in_two_axes():
    after, _ = rewritten(fixed_bert(1), flat_products)
    shapes = {v.name: len(v.shape) for v in ir.from_proto(onnx.shape_inference.infer_shapes(after)).graph.all_nodes()
              for v in v.outputs if v.shape is not None}  # fmt: skip
    norms = [node for node in after.graph.node if node.op_type == "LayerNormalization"]
    assert [shapes[node.output[0]] for node in norms[1:-1]] == [2] * (len(norms) - 2)


def test_free_sizes_and_convolutions_are_left_alone():
    assert_untouched(tiny_bert(), flat_products)
    assert_untouched(tiny_cnn(), flat_products)


def broadcast(shape: list[int]) -> onnx.ModelProto:
    """x·W + b, plus an activation of another shape, [2, 1, 4] or such."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((4, 4)).astype(np.float32), "weight")
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("MatMul", ["y", "weight"], ["other"]),
        helper.make_node("Add", ["product", "other"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["result"]),
    ]
    sizes = {"x": [2, 3, 4], "y": shape}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()]
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, [2, 3, 4])
    graph = helper.make_graph(nodes, "broadcast", inputs, [result], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shape", [[2, 3, 4], [2, 1, 4], [1, 3, 4], [1, 1, 4]])
def test_what_is_broadcast_is_not_flattened(shape):
    before = broadcast(shape)
    after, changed = rewritten(before, flat_products)
    rng = np.random.default_rng(1)
    feed = {"x": rng.standard_normal((2, 3, 4)).astype(np.float32), "y": rng.standard_normal(shape).astype(np.float32)}
    assert changed == 2
    assert relative_error(outputs(after, feed), outputs(before, feed)) < 2e-5
