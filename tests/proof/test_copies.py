"""Repaired copies: each made once, those that come out alike only once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from measure.scripted import linear
from proof.remedies import nothing, raises, set_option, suspect, weight_times
from unlag.causes.contract import Step
from unlag.errors import UsageError
from unlag.model.case import Case
from unlag.model.draft import OnnxDraft, open_draft
from unlag.model.variant import Variant
from unlag.proof.copies import CopyShelf, make_copy

NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def case(tmp_path) -> Case:
    return Case(standard=linear(tmp_path / "standard.onnx"), variant=linear(tmp_path / "variant.onnx"))


def weight_of(variant: Variant) -> np.ndarray:
    draft = open_draft(variant, variant)
    weight = draft.model.graph.initializers["w"].const_value
    assert weight is not None
    return weight.numpy()


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("copy*")}


def test_the_empty_set_is_the_variant_itself(case, tmp_path):
    copy = CopyShelf(case, [suspect("a", weight_times(2))], tmp_path).take(NOTHING)
    assert copy.variant == case.variant
    assert not copy.effective
    assert not files(tmp_path)


def test_a_copy_is_made_once(case, tmp_path):
    calls: list[OnnxDraft] = []

    def counted(draft: OnnxDraft) -> int:
        calls.append(draft)
        return weight_times(2)(draft)

    shelf = CopyShelf(case, [suspect("a", counted)], tmp_path)
    first = shelf.take(frozenset({"a"}))
    assert shelf.take(frozenset({"a"})) is first
    assert len(calls) == 1
    assert first.effective == {"a"}
    assert np.array_equal(weight_of(first.variant), 2 * weight_of(case.variant))


def test_sets_that_give_the_same_copy_share_it(case, tmp_path):
    shelf = CopyShelf(case, [suspect("a", weight_times(2)), suspect("idle", nothing)], tmp_path)
    alone, both = shelf.take(frozenset({"a"})), shelf.take(frozenset({"a", "idle"}))
    assert both is alone
    assert shelf.take(frozenset({"idle"})).variant == case.variant
    assert len(files(tmp_path)) == 1


def test_the_variants_own_files_are_never_changed(case, tmp_path):
    before = Path(case.variant.path).read_bytes()
    CopyShelf(case, [suspect("a", weight_times(2))], tmp_path).take(frozenset({"a"}))
    assert Path(case.variant.path).read_bytes() == before


def test_remedies_work_in_the_order_of_their_steps(case, tmp_path):
    order: list[str] = []

    def noted(name: str):
        def apply(draft: OnnxDraft) -> int:
            del draft
            order.append(name)
            return 1

        return apply

    steps = [Step.SESSION, Step.REQUANTIZE, Step.FUSE, Step.WIDEN]
    make_copy(case, [suspect(step.name, noted(step.name), step=step) for step in steps], tmp_path / "copy.onnx")
    assert order == ["REQUANTIZE", "WIDEN", "FUSE", "SESSION"]


def test_a_remedy_of_the_session_keeps_the_other_options(case, tmp_path):
    variant = case.variant.with_options(threads="1", optimization="off")
    case = Case(standard=case.standard, variant=variant)
    copy = make_copy(case, [suspect("off", set_option("optimization", "all"))], tmp_path / "copy.onnx")
    assert copy.variant.options == {"threads": "1", "optimization": "all"}
    assert copy.changes == {"off": 1}
    again = Case(standard=case.standard, variant=copy.variant)
    assert not make_copy(again, [suspect("off", set_option("optimization", "all"))], tmp_path / "again.onnx").effective


def test_a_copy_that_cannot_be_made_says_why(case, tmp_path):
    with pytest.raises(ValueError, match="no rule for"):
        make_copy(case, [suspect("a", raises)], tmp_path / "copy.onnx")
    with pytest.raises(UsageError, match="can't be written"):
        make_copy(case, [suspect("a", weight_times(2))], tmp_path / "no folder" / "copy.onnx")
