"""Dimensions are fixed only where every input has the one shape, and only where that is measured to help."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from planting import tiny_bert, tiny_cnn, tiny_feed
from stages.stub_workshop import StubWorkshop, trial
from unlag.measure.bench import Bench, open_bench
from unlag.model.case import Case
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.model.workload import Evaluation, Shape, Workload
from unlag.stages.fixed import Decision, Rejected
from unlag.stages.fixed_shapes import REMEDY, fix_shapes, obstacle, shapes_in
from unlag.stages.goal import Goal
from unlag.stages.plan import Plan, build


def bench_of(folder, model: onnx.ModelProto, *shapes: Shape) -> Bench:
    onnx.save(model, folder / "model.onnx")
    variant = Variant("onnxruntime", str(folder / "model.onnx"))
    return open_bench(Case(standard=variant, variant=variant, shapes=shapes or (Shape(2, 8),)), Shape(2, 8))


def workload(*lengths: int, scored: tuple[int, ...] = (), calibration: tuple[int, ...] = ()) -> Workload:
    def feeds(sizes):
        return [{"x": np.zeros((1, size), np.float32)} for size in sizes]

    evaluation = Evaluation("m", feeds(scored), "none", np.zeros(1), lambda a, _: a, lambda *_: 0.0) if scored else None
    first, *others = feeds(lengths)
    return Workload("w", "1x8", first, others, evaluation, feeds(calibration))


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (workload(8), 1),
        (workload(8, 8, 8), 1),
        (workload(8, 9), 2),
        (workload(8, 8, scored=(8, 8)), 1),
        (workload(8, 8, scored=(5, 8, 12)), 3),
        (workload(8, calibration=(4,)), 1),
    ],
)
def test_every_input_that_is_run_or_scored_counts(given, count):
    assert shapes_in(given) == count


def test_one_shape_is_fixed_and_measured(tmp_path):
    workshop = StubWorkshop({REMEDY: trial(0.9)}, bench=bench_of(tmp_path, tiny_bert()))
    plan, decision = fix_shapes(workshop, Plan("float32"), Goal())
    assert plan == Plan("float32", (REMEDY,))
    assert [kept.remedy for kept in decision.kept] == [REMEDY]


def test_what_does_not_help_is_not_fixed(tmp_path):
    workshop = StubWorkshop({REMEDY: trial(1.0)}, bench=bench_of(tmp_path, tiny_bert()))
    plan, decision = fix_shapes(workshop, Plan(), Goal())
    assert plan == Plan()
    assert decision.rejected[0].reason.startswith("no measured gain")


def test_a_small_gain_is_not_worth_all_other_shapes(tmp_path):
    workshop = StubWorkshop({REMEDY: trial(0.975, half=0.001)}, bench=bench_of(tmp_path, tiny_bert()))
    plan, decision = fix_shapes(workshop, Plan(), Goal())
    assert plan == Plan()
    assert decision.rejected[0].reason.endswith("for a model that takes one shape only, a gain of 3% is asked")


def test_what_can_not_be_built_is_said(tmp_path):
    workshop = StubWorkshop({}, (Rejected(REMEDY, "it does not run"),), bench=bench_of(tmp_path, tiny_bert()))
    assert fix_shapes(workshop, Plan(), Goal()) == (Plan(), Decision((), (Rejected(REMEDY, "it does not run"),)))


def test_several_shapes_are_not_fixed_and_it_is_said(tmp_path):
    workshop = StubWorkshop({}, bench=bench_of(tmp_path, tiny_bert(), Shape(2, 8), Shape(1, 4)))
    plan, decision = fix_shapes(workshop, Plan(), Goal())
    assert plan == Plan()
    assert not workshop.searches
    assert decision.rejected[0].reason == "2 shapes were asked for (2x8, 1x4), and a fixed model takes one"


def test_a_workload_of_several_shapes_is_not_fixed():
    bench = SimpleNamespace(case=SimpleNamespace(shapes=(Shape(1, 8),)), workload=workload(8, scored=(5, 8)))
    assert obstacle(bench, Variant("fake", "x")) == "the workload has inputs of 2 shapes, and a fixed model takes one"


def test_fixed_dimensions_need_no_fixing(tmp_path):
    model = onnx.ModelProto()
    model.CopyFrom(tiny_cnn())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    bench = bench_of(tmp_path, model)
    assert "fixed already" in obstacle(bench, bench.case.variant)
    bench = bench_of(tmp_path, tiny_cnn())
    assert not obstacle(bench, bench.case.variant)


@pytest.mark.parametrize("from_standard", [False, True])
def test_a_plan_builds_the_fixed_model_from_variant_and_standard(tmp_path, from_standard):
    case = bench_of(tmp_path, tiny_bert()).case
    observed = Observed(input_shapes={name: array.shape for name, array in tiny_feed(2, 8).items()})
    plan = Plan(remedies=(REMEDY,), from_standard=from_standard)
    built = onnx.load(build(plan, case, tmp_path / "plan.onnx", observed=observed).path)
    for value in built.graph.input:
        assert [d.dim_value for d in value.type.tensor_type.shape.dim] == [2, 8]
