"""Weights stored as int8, floats again from loading on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import cnn_feed, editable, tiny_bert, tiny_cnn, tiny_feed
from rewriting import outputs, relative_error
from unlag.model.graph import save_model
from unlag.model.variant import Variant
from unlag.rewrites.quantize_weights import quantize_weights
from unlag.runtimes.onnxruntime import RUNTIME


@pytest.mark.parametrize(("make", "feed", "kinds"), [
    (tiny_bert, tiny_feed(), {"MatMul", "Gemm"}), (tiny_cnn, cnn_feed(), {"Conv", "Gemm"}),
])  # fmt: skip
def test_weights_are_small_on_disk_and_floats_when_loaded(tmp_path, make, feed, kinds):
    model = editable(make())
    chosen = [node for node in model.graph if node.op_type in kinds and node.inputs[1].const_value is not None]
    assert quantize_weights(model, chosen) == len(chosen) > 3
    path = tmp_path / "small.onnx"
    save_model(model, path)
    plain = tmp_path / "plain.onnx"
    onnx.save(make(), plain)
    assert path.stat().st_size < 0.7 * plain.stat().st_size
    executed = [onnx.load(RUNTIME.executed_graph(Variant("onnxruntime", str(p)), 1, tmp_path)) for p in (path, plain)]
    ours, theirs = ([node.op_type for node in graph.graph.node] for graph in executed)
    assert ours == theirs, "nothing of the chain is left to run"
    assert relative_error(outputs(onnx.load(path), feed), outputs(make(), feed)) < 0.2
    assert relative_error(outputs(onnx.load(path), feed), outputs(make(), feed)) > 1e-5


def test_a_weight_of_two_nodes_is_stored_once():
    model = editable(tiny_cnn())
    first, second, *_ = [node for node in model.graph if node.op_type == "Conv"]
    second.replace_input_with(1, first.inputs[1])
    assert quantize_weights(model, [first, second]) == 2
    assert len({node.inputs[1] for node in (first, second)}) == 1


def test_columns_have_scales_of_their_own():
    model = editable(tiny_bert())
    node = next(n for n in model.graph if n.op_type == "MatMul" and n.inputs[1].const_value is not None)
    before = node.inputs[1].const_value.numpy()
    quantize_weights(model, [node])
    codes, scales = (next(v for name, v in model.graph.initializers.items() if name.endswith(end)).const_value.numpy()
                     for end in (".codes", ".scales"))  # fmt: skip
    assert scales.shape == (1, before.shape[1])
    assert np.abs(codes * scales - before).max() <= 0.51 * scales.max()
    assert (np.abs(codes).max(axis=0) == 127).all()
