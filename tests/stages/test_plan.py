"""A plan's model: rewrites first, then quantization, session options last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from planting import flash, tiny_bert, tiny_feed
from unlag.causes.contract import Step, find_causes
from unlag.errors import UnlagError, UsageError
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.stages import plan as plan_module
from unlag.stages.plan import PRECISIONS, Plan, build, remedies_of

DEQUANTIZE = {"DequantizeLinear"}


@pytest.fixture
def case(tmp_path) -> Case:
    models = {
        "standard": tiny_bert(),
        "flash": flash(
            int8_weights=True, per_tensor=False, fp16_activations=True, segmented_qkv=True, extra_copies=True
        ),
    }
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    return Case(
        standard=Variant("onnxruntime", str(tmp_path / "standard.onnx"), {"threads": "1"}),
        variant=Variant("onnxruntime", str(tmp_path / "flash.onnx"), {"optimization": "off"}),
    )


def outputs(variant: Variant) -> np.ndarray:
    return ort.InferenceSession(variant.path).run(None, tiny_feed())[0]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.vdot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


def operators(variant: Variant) -> list[str]:
    return [node.op_type for node in onnx.load(variant.path).graph.node]


def test_the_empty_plan_is_the_variant(case, tmp_path):
    built = build(Plan(), case, tmp_path / "plan.onnx")
    assert built.options == {"optimization": "off"}
    assert np.array_equal(outputs(built), outputs(case.variant))


def test_float32_takes_the_standards_own_weights(case, tmp_path):
    built = build(Plan("float32"), case, tmp_path / "plan.onnx")
    ops = operators(built)
    assert ops.count("DequantizeLinear") <= 3, "only tables of embeddings stay"
    tensors = onnx.load(built.path).graph.initializer
    assert not [tensor.name for tensor in tensors if tensor.data_type == onnx.TensorProto.FLOAT16]
    assert cosine(outputs(built), outputs(case.standard)) > 0.99
    own = {tensor.raw_data for tensor in onnx.load(case.standard.path).graph.initializer}
    inner = [tensor for tensor in tensors if list(tensor.dims) == [64, 128]]
    assert inner
    assert all(tensor.raw_data in own for tensor in inner), "to the last bit"
    assert cosine(outputs(built), outputs(case.standard)) > cosine(outputs(case.variant), outputs(case.standard))


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p.startswith("dynamic")])
def test_int8_is_small_valid_and_leaves_no_other_file(case, tmp_path, precision):
    folder = tmp_path / "plans"
    folder.mkdir()
    built = build(Plan(precision), case, folder / "plan.onnx")
    assert [path.name for path in folder.iterdir()] == ["plan.onnx"]
    assert "MatMulInteger" in operators(built)
    assert Path(built.path).stat().st_size < 0.6 * Path(case.standard.path).stat().st_size
    assert cosine(outputs(built), outputs(case.standard)) > 0.8
    onnx.checker.check_model(built.path, full_check=True)


def test_7_bits_are_kept_to(case, tmp_path):
    def largest(precision: str) -> int:
        model = onnx.load(build(Plan(precision), case, tmp_path / f"{precision}.onnx").path)
        read = {node.input[1] for node in model.graph.node if node.op_type == "MatMulInteger"}
        codes = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name in read]
        assert codes
        return max(int(np.abs(array.astype(int)).max()) for array in codes)

    assert largest("dynamic_int8_7bit") <= 64 < largest("dynamic_int8")


def test_remedies_see_the_float_model_and_options_come_last(case, tmp_path):
    known = remedies_of("graph")
    graph_remedies = [name for name, remedy in known.items() if remedy.step in {Step.CLEAN, Step.RESTORE}]
    plan = Plan("dynamic_int8", tuple(graph_remedies)).with_options({"spinning": "off", "optimization": "all"})
    built = build(plan, case, tmp_path / "plan.onnx")
    assert built.options == {"optimization": "all", "spinning": "off"}
    assert operators(built).count("Transpose") < operators(case.variant).count("Transpose")
    assert "MatMulInteger" in operators(built)


def test_the_order_in_which_a_plan_names_its_remedies_does_not_matter(case, tmp_path):
    names = list(remedies_of("graph"))
    there = build(Plan("float32", tuple(names)), case, tmp_path / "there.onnx")
    back = build(Plan("float32", tuple(names[::-1])), case, tmp_path / "back.onnx")
    assert Path(there.path).read_bytes() == Path(back.path).read_bytes()


def test_a_plan_builds_the_same_file_twice(case, tmp_path):
    built = [build(Plan("dynamic_int8"), case, tmp_path / f"{k}.onnx") for k in range(2)]
    assert Path(built[0].path).read_bytes() == Path(built[1].path).read_bytes()


def test_a_plan_from_the_standard_has_the_standards_model_and_options(case, tmp_path):
    built = build(Plan(from_standard=True), case, tmp_path / "plan.onnx")
    assert built.options == {"threads": "1"}
    assert np.array_equal(outputs(built), outputs(case.standard))


def test_remedies_are_known_by_dimension_in_the_order_of_their_steps():
    steps = [remedy.step for remedy in remedies_of("graph").values()]
    assert steps == sorted(steps)
    everything = [r.id for cause in find_causes() for r in cause.remedies if r.safety != "ADVICE"]
    assert set(remedies_of("graph")) <= set(everything)


def test_an_unknown_remedy_is_our_fault(case, tmp_path):
    with pytest.raises(UnlagError, match="unknown remedies: magic") as caught:
        build(Plan(remedies=("magic",)), case, tmp_path / "plan.onnx")
    assert caught.value.exit_code == 4
    assert not (tmp_path / "plan.onnx").exists()


def test_a_quantizer_that_fails_leaves_nothing(case, tmp_path, monkeypatch):
    def refuses(*_: object, **__: object) -> None:
        raise UsageError("the quantizer does not take it")

    monkeypatch.setattr(plan_module, "quantize_dynamic", refuses)
    with pytest.raises(UsageError, match="does not take it"):
        build(Plan("dynamic_int8"), case, tmp_path / "plan.onnx")
    assert not list(tmp_path.glob("plan*"))
