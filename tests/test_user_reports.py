"""What users reported, each as the right behavior."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import unlag
from unlag.errors import UsageError
from unlag.measure.statistics import Interval
from unlag.model.draft import open_draft
from unlag.model.variant import Variant


def linear_model(path, *, external=False, inputs=("batch", 4)):
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(inputs))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [inputs[0], 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def test_a_draft_of_a_model_with_external_data_runs_from_another_folder(tmp_path):
    (tmp_path / "there").mkdir()
    source = linear_model(tmp_path / "m.onnx", external=True)
    assert (tmp_path / "weights.bin").exists()
    variant = Variant("onnxruntime", str(source))
    moved = open_draft(variant, variant).save(tmp_path / "there" / "moved.onnx")
    x = np.ones((1, 4), np.float32)
    got, want = (onnxruntime.InferenceSession(p).run(None, {"x": x})[0] for p in (moved.path, str(source)))
    assert np.array_equal(got, want)


def test_a_mistyped_dimension_is_refused_with_those_that_exist(tmp_path):
    model = linear_model(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="no input has a dimension 'foo'") as caught:
        unlag.compare(str(model), str(model), dims={"foo": 3})
    assert "batch" in caught.value.hint


def test_an_unknown_keyword_is_refused(tmp_path):
    model = str(linear_model(tmp_path / "m.onnx"))
    with pytest.raises(UsageError, match="there is no option 'round'"):
        unlag.compare(model, model, round=3)


def picky_model(path):
    """It adds rows of three to whatever it gets."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "three"], ["y"])],
        "picky",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["batch", "sequence"])],
        [numpy_helper.from_array(np.arange(3), "three")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_a_model_that_refuses_made_up_inputs_is_told_which_they_were(tmp_path):
    model = picky_model(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"^the made-up inputs \(x int64 1x128\) do not fit: standard: ") as caught:
        unlag.compare(model, model)
    assert "--workload FILE.npz" in caught.value.hint
    assert "--dim NAME=VALUE" in caught.value.hint
    assert unlag.compare(model, model, dims={"sequence": 3}, rounds=3, max_rounds=3).asked_for.dims == {"sequence": 3}
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.zeros((1, 5), np.int64))
    with pytest.raises(UsageError, match=r"^standard: ") as caught:
        unlag.compare(model, model, workload=str(inputs))


def test_a_mistyped_option_of_a_spec_gets_a_suggestion(tmp_path):
    model = linear_model(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="unknown option 'optimisation'") as caught:
        unlag.compare(str(model), f"{model},optimisation=off")
    assert caught.value.hint.startswith("did you mean optimization? options of onnxruntime: threads,")


def test_a_model_that_fixes_its_shape_is_measured_once(tmp_path):
    model = str(linear_model(tmp_path / "m.onnx", inputs=(2, 4)))
    result = unlag.compare(model, model, shapes="1x1,2x1", rounds=3, max_rounds=3)
    assert result.other_shapes == ()


def test_scalars_of_an_npz_stay_scalars(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        "scaled",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4), np.float32), scale=np.float32(2))
    result = unlag.compare(str(path), str(path), workload=str(tmp_path / "in.npz"), rounds=3, max_rounds=3)
    assert result.agreement.cosine == pytest.approx(1.0)


@pytest.mark.parametrize("deviation", [0.0, 0.01, -0.01])
def test_a_widened_interval_holds_the_old_one_and_inverts(deviation):
    interval = Interval(1.05, 1.04, 1.06)
    wide = interval.widened(deviation)
    assert wide.low <= interval.low * (1 + 1e-12)
    assert wide.high >= interval.high * (1 - 1e-12)
    inverse = Interval(1 / 1.05, 1 / 1.06, 1 / 1.04).widened(deviation)
    assert inverse.low == pytest.approx(1 / wide.high)
