from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from planting import CONFIG, LAYERS, cnn_feed, editable, tiny_bert, tiny_cnn, tiny_feed
from rewriting import outputs
from unlag.errors import UsageError
from unlag.rewrites.bound_masks import bound_masks
from unlag.rewrites.fix_dimensions import fix_dimensions
from unlag.rewrites.flat_products import flat_products
from unlag.rewrites.fold_constants import fold_constants
from unlag.rewrites.fuse_gelu import fuse_gelu
from unlag.rewrites.quantize_npu import quantize_by_default, quantize_npu

FEEDS = [tiny_feed(2, 8, seed) for seed in range(6)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("npu")
    model = editable(tiny_bert())
    fix_dimensions(model, {name: array.shape for name, array in FEEDS[0].items()})
    assert bound_masks(model)
    ir.save(model, folder / "raw.onnx")
    fold_constants(folder / "raw.onnx", folder / "float.onnx")
    model = ir.load(folder / "float.onnx")
    fuse_gelu(model)
    assert flat_products(model) == 4 * LAYERS
    ir.save(model, folder / "float.onnx")
    return folder / "float.onnx"


@pytest.fixture(scope="module")
def made(prepared, tmp_path_factory) -> dict[str, onnx.ModelProto]:
    folder = tmp_path_factory.mktemp("codes")
    for wide in ("none", "sums", "all"):
        assert quantize_npu(prepared, folder / f"{wide}.onnx", FEEDS, wide=wide)
    return {wide: onnx.load(folder / f"{wide}.onnx") for wide in ("none", "sums", "all")}


def code_types(model: onnx.ModelProto, op_type: str, place: int) -> set[str]:
    """Types of the codes that these operators read at this input."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    readers = [node for node in model.graph.node if node.op_type == op_type]
    pairs = [makers[node.input[place]] for node in readers if len(node.input) > place]
    assert all(pair.op_type == "DequantizeLinear" for pair in pairs)
    return {stored[pair.input[2]].dtype.name for pair in pairs}


def cosine(model: onnx.ModelProto) -> float:
    ours, theirs = (np.concatenate([outputs(m, feed)[0].ravel() for feed in FEEDS]) for m in (model, tiny_bert()))
    return float(ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs)))


@pytest.mark.parametrize(
    ("wide", "activations", "sums"),
    [("none", {"uint8"}, "uint8"), ("sums", {"uint8", "uint16"}, "uint16"), ("all", {"uint16"}, "uint16")],
)
def test_numbers_have_the_bits_that_were_asked_for(made, wide, activations, sums):
    model = made[wide]
    assert code_types(model, "Gemm", 0) == activations, "what reads a normalization has its bits"
    assert code_types(model, "Gemm", 1) == {"int8"}, "weights have 8 bits always"
    assert code_types(model, "LayerNormalization", 0) == {sums}
    assert code_types(model, "LayerNormalization", 1) == {"uint8"}, "the NPU takes no other scale of a normalization"
    assert code_types(model, "MatMul", 1) == {"uint8"}, "the second of two activations that are multiplied"
    assert code_types(model, "Gather", 0) == {"uint8"}, "tables stay small"


def test_weights_have_a_scale_for_each_channel(made):
    model = made["all"]
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    weights = [makers[node.input[1]] for node in model.graph.node if node.op_type == "Gemm"]
    assert len(weights) == 4 * LAYERS
    assert all(stored[pair.input[1]].shape == stored[pair.input[0]].shape[1:] for pair in weights)


def test_more_bits_come_nearer(made):
    cosines = [cosine(made[wide]) for wide in ("none", "sums", "all")]
    assert cosines[0] < cosines[1] < cosines[2]
    assert cosines[2] > 0.98


def test_nothing_to_widen_is_said(tmp_path):
    model = editable(tiny_cnn())
    fix_dimensions(model, {"image": (1, 3, 24, 24)})
    ir.save(model, tmp_path / "float.onnx")
    feeds = [cnn_feed(seed=seed) for seed in range(3)]
    assert not quantize_npu(tmp_path / "float.onnx", tmp_path / "sums.onnx", feeds, wide="sums")
    assert not (tmp_path / "sums.onnx").exists()
    assert quantize_npu(tmp_path / "float.onnx", tmp_path / "codes.onnx", feeds, wide="none")


def test_ranges_that_can_not_be_taken_are_one_line(prepared, tmp_path):
    wrong = [{name: array + CONFIG.vocab_size for name, array in FEEDS[0].items()}]
    for quantize in (quantize_by_default, lambda *given: quantize_npu(*given, wide="all")):
        with pytest.raises(UsageError, match="does not take this model") as caught:
            quantize(prepared, tmp_path / "codes.onnx", wrong)
        assert "\n" not in caught.value.message
