"""What the record says about the use of the model that goes out."""

from __future__ import annotations

import onnx
import pytest

from planting import tiny_bert
from report import records
from unlag.errors import ContenderError
from unlag.measure.bench import Bench, open_bench
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.stages import use


def saved(folder, name: str, *, fixed: bool) -> Variant:
    model = onnx.ModelProto()
    model.CopyFrom(tiny_bert())
    for value in model.graph.input if fixed else ():
        for axis, size in enumerate((2, 8)):
            value.type.tensor_type.shape.dim[axis].dim_value = size
    onnx.save(model, folder / f"{name}.onnx")
    return Variant("onnxruntime", str(folder / f"{name}.onnx"))


@pytest.fixture
def bench(tmp_path):
    def make(*, fixed: bool = False) -> Bench:
        standard = saved(tmp_path, "standard", fixed=fixed)
        return open_bench(Case(standard=standard, variant=standard, shapes=(Shape(2, 8),)), Shape(2, 8))

    return make


def new_notes(bench: Bench, variant: Variant) -> tuple[str, ...]:
    before = records.fix().notes
    after = use.with_use(bench, records.fix(), variant).notes
    assert after[: len(before)] == before
    return after[len(before) :]


def test_a_model_of_one_shape_says_which_one(bench, tmp_path):
    (note,) = new_notes(bench(), saved(tmp_path, "fixed", fixed=True))
    assert "inputs of one shape only, input_ids [2, 8], attention_mask [2, 8], token_type_ids [2, 8]" in note
    assert "--shapes" in note


def test_shapes_that_are_as_they_were_need_no_word(bench, tmp_path):
    assert not new_notes(bench(), saved(tmp_path, "free", fixed=False))
    assert not new_notes(bench(fixed=True), saved(tmp_path, "fixed", fixed=True))


def test_padding_that_can_not_be_measured_is_said(bench, tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise ContenderError("the model in batches was killed while it was measured: SIGKILL (out of memory?)")

    monkeypatch.setattr(use, "measure_lengths", fails)
    (note,) = new_notes(bench(), saved(tmp_path, "free", fixed=False))
    assert note.startswith("what padding costs could not be measured: the model in batches was killed")
