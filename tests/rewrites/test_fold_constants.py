from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import editable, tiny_bert, tiny_feed
from rewriting import outputs, relative_error
from unlag.errors import UsageError
from unlag.rewrites.fix_dimensions import fix_dimensions
from unlag.rewrites.fold_constants import fold_constants


@pytest.fixture
def folded(tmp_path) -> onnx.ModelProto:
    model = editable(tiny_bert())
    fix_dimensions(model, {name: array.shape for name, array in tiny_feed(2, 8).items()})
    ir.save(model, tmp_path / "fixed.onnx")
    fold_constants(tmp_path / "fixed.onnx", tmp_path / "folded.onnx")
    return onnx.load(tmp_path / "folded.onnx")


def test_what_depends_on_sizes_only_is_stored(folded):
    counted = Counter(node.op_type for node in folded.graph.node)
    before = Counter(node.op_type for node in tiny_bert().graph.node)
    assert before["Shape"]
    assert before["Slice"]
    assert not counted["Shape"]
    assert not counted["Slice"]
    assert counted["MatMul"] == before["MatMul"], "no product becomes another operator"
    assert relative_error(outputs(folded, tiny_feed(2, 8)), outputs(tiny_bert(), tiny_feed(2, 8))) < 2e-5


def test_only_standard_operators_are_in_it_and_all_shapes_are_known(folded):
    assert [imported.domain for imported in folded.opset_import] == [""]
    known = {value.name for value in (*folded.graph.value_info, *folded.graph.output)}
    assert {out for node in folded.graph.node for out in node.output} <= known


def test_a_model_that_does_not_open_is_one_line(tmp_path):
    broken = onnx.ModelProto()
    broken.CopyFrom(tiny_bert())
    broken.graph.node[0].input[0] = "nowhere"
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(UsageError, match="constant folding does not take this model") as caught:
        fold_constants(tmp_path / "broken.onnx", tmp_path / "folded.onnx")
    assert "\n" not in caught.value.message
    assert not np.any([path.name == "folded.onnx" for path in tmp_path.iterdir()])
