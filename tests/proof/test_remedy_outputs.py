"""Remedies that change outputs, or nothing, prove nothing: real models, workers in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from measure.scripted import in_process, linear
from proof.remedies import break_model, change_weight, nothing, raises, suspect, weight_times
from unlag.causes.contract import Step
from unlag.measure.bench import Bench, open_bench
from unlag.model.case import Case
from unlag.model.draft import OnnxDraft
from unlag.model.workload import Shape
from unlag.proof.copies import CopyShelf, Suspect
from unlag.proof.outputs import check_remedies
from unlag.rewrites.fix_dimensions import fix_dimensions

__all__ = ["in_process"]  # a fixture

WEIGHT = np.random.default_rng(0).standard_normal((4, 4))
SIGNS = np.where(np.random.default_rng(1).random((4, 4)) < 0.5, -1, 1)
pytestmark = pytest.mark.usefixtures("in_process")


def bench_of(tmp_path, variant_weight: np.ndarray = WEIGHT) -> Bench:
    case = Case(
        standard=linear(tmp_path / "standard.onnx", WEIGHT), variant=linear(tmp_path / "variant.onnx", variant_weight)
    )
    return open_bench(case, Shape(4, 8))


def judged(tmp_path, *suspects: Suspect, variant_weight: np.ndarray = WEIGHT) -> tuple[list[str], dict[str, str]]:
    bench = bench_of(tmp_path, variant_weight)
    kept, rejections = check_remedies(bench, CopyShelf(bench.case, suspects, tmp_path), suspects)
    return [s.id for s in kept], {rejection.cause: rejection.reason for rejection in rejections}


def test_a_remedy_that_keeps_the_outputs_is_kept(tmp_path):
    kept, rejected = judged(tmp_path, suspect("honest", weight_times(1 + 1e-6)))
    assert kept == ["honest"]
    assert not rejected


def test_a_remedy_that_changes_nothing_is_rejected(tmp_path):
    kept, rejected = judged(tmp_path, suspect("idle", nothing), suspect("honest", weight_times(1 + 1e-6)))
    assert kept == ["honest"]
    assert rejected == {"idle": "its remedy (mend idle) found nothing to change"}


@pytest.mark.parametrize(
    ("change", "cheat"),
    [
        (lambda w: 2 * w, "doubled"),
        (lambda w: w[:, ::-1], "shuffled"),
        (np.zeros_like, "zeroed"),
        (lambda w: -w, "negated"),
        (lambda w: w * np.linspace(1.0, 1.2, 4), "one part off"),
        (lambda w: w * (1 + 0.04 * SIGNS), "a little everywhere"),
    ],
)
def test_a_remedy_that_must_keep_the_outputs_and_does_not_is_rejected(tmp_path, change, cheat):
    kept, rejected = judged(tmp_path, suspect(cheat, change_weight(change)))
    assert not kept
    assert rejected[cheat].startswith("its remedy changed the outputs (relative error ")
    assert rejected[cheat].endswith(", which it must not")


@pytest.mark.parametrize(("change", "cheat"), [(lambda w: w[:, ::-1], "shuffled"), (np.zeros_like, "zeroed")])
def test_a_remedy_that_leads_away_from_the_standard_is_rejected(tmp_path, change, cheat):
    kept, rejected = judged(tmp_path, suspect(cheat, change_weight(change), "CLOSE"))
    assert not kept
    assert "takes the outputs away from the standard's (cosine 1.000 before" in rejected[cheat]


def test_a_remedy_that_restores_the_standards_outputs_is_kept(tmp_path):
    restore = suspect("restore", change_weight(lambda _: WEIGHT.astype(np.float32)), "CLOSE")
    kept, rejected = judged(tmp_path, restore, variant_weight=WEIGHT[:, ::-1].copy())
    assert kept == ["restore"]
    assert not rejected


def test_a_remedy_that_makes_nan_is_rejected(tmp_path):
    kept, rejected = judged(tmp_path, suspect("nan", weight_times(np.nan)))
    assert not kept
    assert rejected["nan"].startswith("its repaired copy does not run: the variant gives NaN")


def test_a_copy_that_the_runtime_refuses_is_rejected_and_the_others_go_on(tmp_path):
    kept, rejected = judged(tmp_path, suspect("broken", break_model), suspect("honest", weight_times(1 + 1e-6)))
    assert kept == ["honest"]
    assert rejected["broken"].startswith("its repaired copy does not run: ")


def test_a_remedy_that_raises_is_rejected_and_the_others_go_on(tmp_path):
    kept, rejected = judged(tmp_path, suspect("faulty", raises), suspect("honest", weight_times(1 + 1e-6)))
    assert kept == ["honest"]
    assert "no rule for variant.onnx" in rejected["faulty"]


def after(first: str, factor: float) -> tuple[Callable[[OnnxDraft], int], Callable[[OnnxDraft], int]]:
    """Two remedies, of which the second only finds something to do when the first was at work."""

    def begin(draft: OnnxDraft) -> int:
        draft.model.graph.metadata_props[first] = "done"
        return 1

    def follow(draft: OnnxDraft) -> int:
        return weight_times(factor)(draft) if first in draft.model.graph.metadata_props else 0

    return begin, follow


def test_a_remedy_that_only_works_after_another_one_is_kept(tmp_path):
    begin, follow = after("scale", 1 + 1e-6)
    kept, rejected = judged(
        tmp_path, suspect("first", begin, step=Step.RESTORE), suspect("second", follow, step=Step.FUSE)
    )
    assert kept == ["first", "second"]
    assert not rejected


def test_a_cheat_that_only_works_after_another_remedy_is_caught(tmp_path):
    begin, follow = after("scale", 2.0)
    kept, _ = judged(tmp_path, suspect("first", begin, step=Step.RESTORE), suspect("cheat", follow, step=Step.FUSE))
    assert kept == ["first"]


def fix_batch(draft: OnnxDraft) -> int:
    return fix_dimensions(draft.model, {"x": (4, 4)})


def fixing(name: str) -> Suspect:
    made = suspect(name, fix_batch)
    return replace(made, remedy=replace(made.remedy, fixes_shape=True))


def test_a_remedy_that_fixes_the_shape_is_judged_at_that_shape_and_so_are_the_others(tmp_path):
    bench = bench_of(tmp_path)
    assert bench.workload.feed["x"].shape == (4, 4)
    others = tuple({"x": np.ones((rows, 4), np.float32)} for rows in (1, 2))
    bench = replace(bench, workload=replace(bench.workload, agreement=others))
    begin, follow = after("scale", 1 + 1e-6)
    suspects = (
        fixing("fixed"),
        suspect("first", begin, step=Step.RESTORE),
        suspect("second", follow, step=Step.FUSE),
    )
    kept, rejections = check_remedies(bench, CopyShelf(bench.case, suspects, tmp_path), suspects)
    assert [s.id for s in kept] == ["fixed", "first", "second"], rejections
