"""Case -> Comparison: verdicts, what is refused, and the record."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from measure.scripted import fake, hurry, in_process, linear, onnx_model, quiet
from measure.test_contest import made_result
from report import records
from unlag.errors import ContenderError, Missing, UsageError
from unlag.measure.accuracy import agreement
from unlag.measure.bench import Bench, first_shape, open_bench, quick
from unlag.measure.compare import _fallbacks, _output_warnings, compare, speed_of
from unlag.measure.comparison import Comparison, Verdict
from unlag.measure.schedule import Protocol
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Agreement, Shape
from unlag.runtimes.contract import Placement
from unlag.runtimes.fake import Fault

__all__ = ["in_process"]  # a fixture

OUTPUTS = [{"y": np.random.default_rng(k).standard_normal((3, 5)).astype(np.float32)} for k in range(2)]


@pytest.fixture
def quick_bench(monkeypatch):
    quiet(monkeypatch)
    hurry(monkeypatch)


def case_of(standard: Variant, variant: Variant, **options: object) -> Case:
    return Case(
        standard=standard, variant=variant, **{"shapes": (Shape(1, 8),), "rounds": 3, "max_rounds": 6, **options}
    )


@pytest.mark.usefixtures("quick_bench")
class TestMeasured:
    """Real processes."""

    def test_a_model_against_its_own_copy_does_not_lag(self, tmp_path):
        same = fake(tmp_path, time_ms=4.0, busy=True)
        comparison = compare(case_of(same, same))
        assert comparison.verdict.speed in {"same", "inconclusive"}
        assert 0.5 < comparison.slowdown.estimate < 2
        assert comparison.agreement == Agreement(pytest.approx(1.0), 0.0, 0.0, 1.0)
        assert not comparison.verdict.lags

    def test_half_as_long_again_is_slower(self, tmp_path):
        """They sleep, so that a busy machine can't take the verdict away."""
        standard, variant = fake(tmp_path, "standard", time_ms=8.0), fake(tmp_path, "variant", time_ms=12.0)
        comparison = compare(case_of(standard, variant))
        assert comparison.verdict == Verdict("slower", "not_measured")
        assert comparison.verdict.lags
        assert 1.3 < comparison.slowdown.estimate < 1.8
        assert 0.7 < comparison.noise.estimate < 1.4
        for side in (comparison.standard, comparison.variant):
            assert side.peak_memory_bytes > 10_000_000
            assert side.latency_ms.low <= side.latency_ms.median <= side.latency_ms.high
            assert side.first_run_ms >= 8
            assert side.warmup_runs >= 10
        assert set(comparison.samples) == {"standard", "variant", "control"}
        assert {len(sample.launches) for sample in comparison.samples.values()} == {2}
        assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison

    def test_onnx_models_with_external_data(self, tmp_path):
        weight = np.random.default_rng(0).standard_normal((4, 300))
        standard = linear(tmp_path / "standard.onnx", weight)
        variant = tmp_path / "variant.onnx"
        onnx.save(onnx.load(standard.path), variant, save_as_external_data=True, location="far.bin", size_threshold=0)
        comparison = compare(case_of(standard, Variant("onnxruntime", str(variant), {"threads": "1"})))
        assert comparison.variant.size_bytes == variant.stat().st_size + (tmp_path / "far.bin").stat().st_size
        assert (tmp_path / "far.bin").stat().st_size >= weight.size * 4
        assert comparison.standard.size_bytes == Path(standard.path).stat().st_size
        assert comparison.variant.spec == f"{variant},threads=1"
        assert comparison.agreement is not None
        assert comparison.agreement.max_error == 0
        assert comparison.rounds >= 3


@pytest.mark.usefixtures("in_process", "quick_bench")
class TestInProcess:
    """What needs no timing."""

    def test_each_shape_has_its_row(self, tmp_path):
        model = fake(tmp_path)
        shares: list[float] = []

        def told(what: str, share: float | None = None) -> None:
            assert what
            shares.extend([] if share is None else [share])

        case = case_of(model, model, shapes=(Shape(1, 8), Shape(2, 8), Shape(4, 8)), dims={"width": 3}, rounds=2)
        comparison = compare(case, told)
        rows = (comparison, *comparison.other_shapes)
        assert [row.shape for row in rows] == ["1x3", "2x3", "4x3"]
        assert all(not row.other_shapes for row in rows[1:])
        assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison
        assert shares == sorted(shares), "progress goes backwards"

    def test_a_pair_with_other_outputs_is_refused_before_it_is_timed(self, tmp_path):
        nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
        both = Variant(
            "onnxruntime", str(onnx_model(tmp_path / "two.onnx", nodes, {"y": ["batch", 4], "z": ["batch", 4]}))
        )
        one = Variant("onnxruntime", str(onnx_model(tmp_path / "one.onnx", nodes[:1], {"y": ["batch", 4]})))
        with pytest.raises(
            UsageError, match="the standard has 2 outputs and the variant 1: not the same task"
        ) as caught:
            compare(case_of(both, one))
        assert "\n" not in caught.value.message

    def test_outputs_that_only_the_variant_has_are_left_out(self, tmp_path):
        nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
        both = Variant(
            "onnxruntime", str(onnx_model(tmp_path / "two.onnx", nodes, {"z": ["batch", 4], "y": ["batch", 4]}))
        )
        one = Variant("onnxruntime", str(onnx_model(tmp_path / "one.onnx", nodes[:1], {"y": ["batch", 4]})))
        assert compare(case_of(one, both)).agreement.max_error == 0

    @pytest.mark.parametrize("who", ["standard", "variant"])
    def test_nan_outputs_are_refused_with_the_side_that_has_them(self, tmp_path, who):
        sides = {"standard": fake(tmp_path, "good"), "variant": fake(tmp_path, "good")}
        sides[who] = fake(tmp_path, "bad", Fault("nan"))
        with pytest.raises(UsageError, match=f"the {who} gives NaN or infinite outputs") as caught:
            compare(case_of(sides["standard"], sides["variant"]))
        assert "\n" not in caught.value.message

    def test_inputs_that_the_variant_names_otherwise(self, tmp_path):
        with pytest.raises(UsageError, match=r"needs an input 'z' that the workload does not give \(it gives x\)"):
            compare(case_of(fake(tmp_path, "one"), fake(tmp_path, "other", input_name="z")))

    def test_a_variant_that_is_not_there_is_refused_before_any_process(self, tmp_path, in_process):
        with pytest.raises(UsageError, match=r"missing\.onnx does not exist"):
            compare(case_of(linear(tmp_path / "m.onnx"), Variant("onnxruntime", str(tmp_path / "missing.onnx"))))
        assert not in_process.started

    def test_labels_give_an_accuracy_verdict(self, tmp_path):
        items = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
        np.savez(tmp_path / "task.npz", x=items, labels=items.argmax(axis=1))
        right, wrong = linear(tmp_path / "right.onnx", np.eye(4)), linear(tmp_path / "wrong.onnx", -np.eye(4))
        case = case_of(right, wrong, workload=str(tmp_path / "task.npz"))
        comparison = compare(case)
        assert comparison.standard.accuracy is not None
        assert comparison.standard.accuracy.value == 100
        assert comparison.verdict.accuracy == "worse"
        assert comparison.accuracy_change is not None
        assert comparison.accuracy_change.high < -50
        back = compare(msgspec.structs.replace(case, standard=wrong, variant=right))
        assert back.verdict.accuracy == "better"
        same = compare(msgspec.structs.replace(case, variant=right))
        assert same.accuracy_change == Interval(0.0, 0.0, 0.0)
        assert same.verdict.accuracy == "same"

    def test_other_outputs_without_labels_are_warned_of(self, tmp_path):
        comparison = compare(case_of(linear(tmp_path / "m.onnx"), linear(tmp_path / "n.onnx", -np.eye(4))))
        assert comparison.verdict.accuracy == "not_measured"
        assert any("outputs are not the standard's" in warning for warning in comparison.warnings)

    @pytest.mark.parametrize("alone", [False, True])
    def test_texts_among_the_outputs_are_left_out_of_the_agreement(self, tmp_path, alone):
        nodes = [
            helper.make_node("Neg", ["x"], ["y"]),
            helper.make_node("Cast", ["x"], ["s"], to=onnx.TensorProto.STRING),
        ]
        outputs = {"s": ["batch", 4]} if alone else {"s": ["batch", 4], "y": ["batch", 4]}
        model = Variant("onnxruntime", str(onnx_model(tmp_path / "m.onnx", nodes, outputs)))
        if alone:
            with pytest.raises(UsageError, match="no numbers that could be compared"):
                compare(case_of(model, model))
        else:
            comparison = compare(case_of(model, model))
            assert comparison.agreement is not None
            assert comparison.agreement.cosine == pytest.approx(1.0)


def test_no_shape_is_no_case(tmp_path):
    model = fake(tmp_path)
    with pytest.raises(UsageError, match="no shape"):
        first_shape(case_of(model, model, shapes=()))


def test_the_bench_follows_the_case(tmp_path):
    model = fake(tmp_path)
    bench: Bench = open_bench(
        case_of(model, model, rounds=7, max_rounds=3, seed=5, threads=1, patience_s=9.0), Shape(2, 8)
    )
    assert bench.protocol == Protocol(rounds=7, max_rounds=7, patience_s=9.0, seed=5)
    assert bench.threads == 1
    assert bench.workload.feed["x"].shape[0] == 2
    assert open_bench(case_of(model, model), Shape(1, 8)).threads == len(bench.cores)
    assert quick(bench.protocol, 2) == dataclasses_free(bench.protocol, rounds=2, max_rounds=4)


def dataclasses_free(protocol: Protocol, **rules: int) -> Protocol:
    return msgspec.structs.replace(protocol, **rules)


def test_a_part_of_the_work_has_its_share_of_the_progress(tmp_path):
    told: list[float | None] = []
    model = fake(tmp_path)
    bench = open_bench(case_of(model, model), Shape(1, 8))
    whole = dataclasses.replace(bench, progress=lambda _, share=None: told.append(share))
    part = whole.within(0.5, 1.0).within(0.0, 0.5)
    for share in (0.0, 1.0, 7.0, None):
        part.progress("x", share)
    assert told == [0.5, 0.75, 0.75, None]


def test_where_disturbed_rounds_count_the_noise_is_all_that_the_control_did():
    times = {"standard": [10.0, 10.0, 10.0], "control": [10.0, 11.5, 10.0], "variant": [11.0, 11.0, 11.0]}
    quiet_result = made_result(times)
    loud = msgspec.structs.replace(quiet_result, disturbed=(1,))
    assert not loud.quiet
    _, calm, _ = speed_of(quiet_result)
    slowdown, noise, verdict = speed_of(loud)
    assert slowdown.estimate == pytest.approx(1.1)
    assert noise.high >= 1.15 - 1e-9
    assert noise.low <= min(calm.low, 1.0)
    assert verdict == "inconclusive"


def test_agreement_of_equal_outputs_is_whole():
    assert agreement(OUTPUTS, OUTPUTS) == Agreement(pytest.approx(1.0), 0.0, 0.0, 1.0)


@pytest.mark.parametrize("spoiled", ["doubled", "shuffled", "zeroed", "negated"])
def test_agreement_catches_other_outputs(spoiled):
    change = {
        "doubled": lambda y: 2 * y,
        "shuffled": lambda y: np.roll(y, 1, axis=1),
        "zeroed": np.zeros_like,
        "negated": lambda y: -y,
    }[spoiled]
    found = agreement(OUTPUTS, [{"y": change(feed["y"])} for feed in OUTPUTS])
    assert found.relative_error > 0.9
    assert found.max_error > 0.9
    assert (found.cosine < 0.5) == (spoiled != "doubled")
    assert found.top1 == 1.0 if spoiled == "doubled" else found.top1 < 1.0


def test_outputs_are_paired_by_name_or_else_by_order():
    left = [{"a": np.ones((1, 2)), "b": np.zeros((1, 2))}]
    assert agreement(left, [{"b": np.zeros((1, 2)), "a": np.ones((1, 2))}]).max_error == 0
    assert agreement(left, [{"c": np.ones((1, 2)), "d": np.zeros((1, 2))}]).max_error == 0
    assert agreement(left, [{"d": np.zeros((1, 2)), "c": np.ones((1, 2))}]).max_error == 1


def test_outputs_of_other_shapes_are_refused():
    with pytest.raises(UsageError, match=r"output 'y' is \[3, 5\] in the standard and \[5, 3\] in the variant"):
        agreement(OUTPUTS, [{"y": feed["y"].T} for feed in OUTPUTS])


def test_outputs_of_nothing_but_zeros():
    zeros = [{"y": np.zeros((1, 3))}]
    assert agreement(zeros, zeros).cosine == 1.0
    assert agreement(zeros, [{"y": np.ones((1, 3))}]).cosine == 0.0
    assert agreement(zeros, [{"y": np.ones((1, 3))}]).relative_error == 1.0


def test_top1_needs_a_class_axis():
    assert agreement([{"y": np.ones((2, 1))}], [{"y": np.ones((2, 1))}]).top1 is None
    assert agreement([{"y": np.ones((2, 3, 4))}], [{"y": np.ones((2, 3, 4))}]).top1 is None


def test_nodes_that_fell_back_are_counted():
    placed = Placement({"CUDAExecutionProvider": 3, "CPUExecutionProvider": 2}, "CUDAExecutionProvider")
    assert _fallbacks({"standard": Missing("only the CPU"), "variant": placed}) == [
        "2 of 5 nodes of the variant fell back from CUDAExecutionProvider"
    ]
    assert not _fallbacks({"variant": Placement({"CPUExecutionProvider": 2}, "CPUExecutionProvider")})


@pytest.mark.parametrize(
    ("cosine", "labeled", "warned"), [(0.9, False, True), (0.9, True, False), (0.999, False, False)]
)
def test_poor_agreement_is_warned_of_where_no_labels_judge(cosine, labeled, warned):
    change = Interval(0.0, 0.0, 0.0) if labeled else None
    assert bool(_output_warnings(Agreement(cosine, 1.0, 1.0, None), change)) == warned


def test_a_comparison_knows_whether_it_lags():
    assert records.comparison().verdict.lags
    assert not Verdict("faster", "same").lags
    assert Verdict("same", "worse").lags
    assert not Verdict("inconclusive", "not_measured").lags


def test_a_contender_error_is_the_users_to_mend():
    assert issubclass(ContenderError, UsageError)
