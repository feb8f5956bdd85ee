"""What the GPU stage needs, and what it makes of its choices and of measurements; on the CPU."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from measure.scripted import hurry, in_process, quiet
from planting import tiny_bert, tiny_feed
from recorded_profiles import seen
from report import records
from rewriting import outputs, relative_error
from stages.stub_workshop import StubWorkshop, trial
from unlag import pipeline
from unlag.errors import Missing, UsageError
from unlag.measure.bench import open_bench
from unlag.measure.compare import Compared
from unlag.measure.host_facts import Gpu
from unlag.measure.host_gpu import capability_of
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.runtimes.onnxruntime.nvidia import CPU, CUDA, INSTALL, TENSORRT
from unlag.stages import fix as fix_module
from unlag.stages import gpu
from unlag.stages import search as search_module
from unlag.stages.fixed import Decision
from unlag.stages.goal import Goal
from unlag.stages.gpu_choices import FLOAT32, Choice, Seen
from unlag.stages.plan import Plan, build
from unlag.stages.search import Workshop

__all__ = ["in_process"]  # a fixture

HALF, SUMS = "compute_in_float16", "compute_in_float16_but_sums"
ENGINES = ["provider=tensorrt", "provider=tensorrt,trt_fp16=on", "provider=tensorrt,trt_bf16=on"]


def a_gpu(**facts) -> Gpu:
    unread = dict.fromkeys(Gpu.__struct_fields__, Missing("not read"))
    return Gpu(**{**unread, "index": 0, **facts})


def test_the_capability_is_that_of_the_device_in_use():
    both = (a_gpu(compute_capability="7.5"), a_gpu(index=1, compute_capability="12.0"))
    assert [capability_of(both, index) for index in (0, 1)] == [(7, 5), (12, 0)]
    assert capability_of(both, 2) == Missing("no GPU 2 among the 2 that NVML lists")
    assert capability_of(Missing("no driver")) == Missing("no driver")


NO_DRIVER = Missing("no NVIDIA driver is loaded: /proc/driver/nvidia does not exist")
NO_LIBRARY = Missing("NVIDIA GPUs were not looked for: the package nvidia-ml-py is not installed (unlag[gpu])")
LACKING = {
    "everything": ((CPU,), NO_DRIVER, ["has no CUDA provider (it has cpu)", "no NVIDIA driver"], INSTALL),
    "the build": ((CPU,), (a_gpu(),), ["has no CUDA provider"], INSTALL),
    "the driver": ((CUDA, CPU), NO_DRIVER, ["no NVIDIA driver"], "nvidia-smi"),
    "the library": ((CUDA, CPU), NO_LIBRARY, ["nvidia-ml-py is not installed"], "pip install nvidia-ml-py"),
    "the device": ((TENSORRT, CUDA, CPU), (), ["0 GPUs"], "nvidia-smi"),
}


@pytest.mark.parametrize(("providers", "gpus", "told", "hint"), LACKING.values(), ids=LACKING)
def test_what_is_missing_is_told_with_the_command_that_installs_it(providers, gpus, told, hint):
    with pytest.raises(UsageError) as refused:
        gpu.check_gpu(providers, gpus)
    assert all(part in refused.value.message for part in told)
    assert ("CUDA provider" in refused.value.message) == (CUDA not in providers)
    assert hint in refused.value.hint


def test_a_machine_that_has_all_is_not_refused():
    gpu.check_gpu((CUDA, CPU), (a_gpu(),))


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setattr(gpu, "check_gpu", lambda *_: None)


def case_of(standard: Variant, variant: Variant) -> Case:
    return Case(standard=standard, variant=variant, target="gpu")


@pytest.mark.usefixtures("on_device")
def test_both_models_are_measured_on_the_gpu():
    plain, engine = Variant("onnxruntime", "a.onnx"), Variant("onnxruntime", "b.onnx", {"provider": "tensorrt"})
    case = fix_module.for_target(case_of(plain, engine))
    assert (case.standard.options, case.variant.options) == ({"provider": "cuda"}, {"provider": "tensorrt"})
    assert fix_module.for_target(case_of(plain, plain)).alone


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    ("variant", "told"),
    [
        (Variant("fake", "a.json"), "not for fake"),
        (Variant("onnxruntime", "a.onnx", {"provider": "CPU"}), "asks for the CPU"),
    ],
)
def test_what_can_not_run_on_a_gpu_is_refused(variant, told):
    with pytest.raises(UsageError, match=told):
        fix_module.for_target(case_of(Variant("onnxruntime", "b.onnx"), variant))


def test_without_a_gpu_nothing_is_measured_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "read_host", lambda: records.HOST)
    monkeypatch.setattr(pipeline, "open_bench", lambda *_: pytest.fail("it goes on"))
    onnx.save(tiny_bert(), tmp_path / "standard.onnx")
    standard = Variant("onnxruntime", str(tmp_path / "standard.onnx"))
    with pytest.raises(UsageError, match="can't fix for gpu here") as refused:
        pipeline.fix(case_of(standard, standard), tmp_path / "fixed")
    assert refused.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["standard.onnx"]


@pytest.fixture
def looked(monkeypatch) -> list[Plan]:
    """The plans that were profiled; all of them look like the profile of float32 products."""
    plans: list[Plan] = []

    def look(_workshop, plan: Plan) -> Seen:
        plans.append(plan)
        return seen("gpu_float32_products", options={"provider": "cuda", "tf32": "off", **plan.options})

    monkeypatch.setattr(gpu, "_look", look)
    return plans


def test_each_round_goes_on_from_what_the_one_before_has_kept(looked):
    workshop = StubWorkshop({"io_binding=on": trial(0.9), HALF: trial(0.4, change=-0.1), ENGINES[1]: trial(1.2)})
    plan, decision = gpu.fit_gpu(workshop, Plan("dynamic_int8"), Goal())
    assert plan == Plan("float32", (HALF,), {"io_binding": "on"})
    assert [part.remedy for part in decision.kept] == ["io_binding=on", HALF]
    assert looked == [Plan("dynamic_int8"), Plan("dynamic_int8", (), {"io_binding": "on"}), plan]
    engine = next(candidates for what, _, candidates in workshop.searches if what == "gpu, engines")
    assert engine[ENGINES[1]] == Plan("float32", (), {"io_binding": "on", "provider": "tensorrt", "trt_fp16": "on"})


def test_what_could_not_be_checked_is_told_once(looked):  # noqa: ARG001 - the profile
    _, decision = gpu.fit_gpu(StubWorkshop({"io_binding=on": trial(0.9)}), Plan(), Goal())
    assert decision.notes[:2] == (gpu.UNTRIED, gpu.BLIND)
    assert "12.68 MB over the bus" in decision.notes[2]
    names = [part.remedy for part in (*decision.kept, *decision.rejected)]
    assert len(names) == len(set(names)), "launches are looked at twice, and told once"


def test_what_is_left_on_the_cpu_is_told():
    notes = gpu.notes_of(seen("gpu_copied_integers", capability=Missing("no NVML")), Plan())
    assert "left on the CPU: 4 operators (4 nodes with those on shapes), and 4 copies" in notes
    assert any("no NVML" in note for note in notes)
    assert gpu.notes_of(seen("gpu_fused_attention"), Plan()) == (gpu.UNTRIED, gpu.BLIND)


def test_a_choice_of_numbers_takes_integers_back_first():
    narrow = Choice(HALF, "", remedies=(HALF,), in_float32=True)
    assert gpu.applied(narrow, Plan("dynamic_int8", ("a",))) == Plan("float32", ("a", HALF))
    assert gpu.applied(narrow, Plan("as_is", ("a",))) == Plan("as_is", ("a", HALF))
    assert gpu.applied(Choice(FLOAT32, "", in_float32=True), Plan()) == Plan("float32")


def bert(folder: Path) -> Variant:
    onnx.save(tiny_bert(), folder / "bert.onnx")
    return Variant("onnxruntime", str(folder / "bert.onnx"))


@pytest.mark.parametrize("remedies", [(HALF,), (SUMS,), (HALF, "pad_dimensions")])
def test_a_plan_with_half_precision_builds_a_model_that_runs(remedies, tmp_path):
    standard = bert(tmp_path)
    built = build(Plan("float32", remedies), case_of(standard, standard), tmp_path / "half.onnx")
    narrow = onnx.load(built.path)
    assert {t.data_type for t in narrow.graph.initializer if len(t.dims) == 2} >= {onnx.TensorProto.FLOAT16}
    assert 0 < relative_error(outputs(narrow, tiny_feed()), outputs(tiny_bert(), tiny_feed())) < 0.1


@pytest.fixture
def workshop(tmp_path, monkeypatch, in_process) -> Workshop:  # noqa: ARG001 - its workers live in this process
    quiet(monkeypatch)
    hurry(monkeypatch, min_turn_ms=0.0, warmup_limit_s=0.0)
    monkeypatch.setattr(search_module, "contenders_at_once", lambda *_: 20)
    standard, plans = bert(tmp_path), tmp_path / "plans"
    plans.mkdir()
    bench = open_bench(Case(standard=standard, variant=standard, rounds=2, max_rounds=2), Shape(2, 8))
    return Workshop(bench, Compared(records.comparison(), {}), plans)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_whole_stage_measures_what_it_can_and_says_why_it_can_not_the_rest(workshop, looked):
    """On the CPU: bindings and half precision run here, NVIDIA's options don't, and that ends nothing."""
    plan, decision = gpu.fit_gpu(workshop, Plan(), Goal())
    told = {part.remedy: part.reason for part in (*decision.kept, *decision.rejected)}
    assert {"io_binding=on", HALF, SUMS, "tf32=on", *ENGINES} <= set(told)
    assert "tf32 needs provider=cuda" in told["tf32=on"]
    assert "% time" in told["io_binding=on"]
    assert "% time" in told[HALF]
    assert set(plan.options) <= {"io_binding"}
    assert looked[0] == Plan()


def test_what_is_seen_of_a_model_is_what_runs(workshop):
    what = gpu._look(workshop, Plan())
    made = sum(array.nbytes for array in tiny_feed(2, 8).values()) + outputs(tiny_bert(), tiny_feed(2, 8))[0].nbytes
    assert (what.model.free_inputs, what.model.moved_bytes, what.model.numbers_only) == (3, made, True)
    assert {"MatMul", "FusedMatMul", "Softmax"} & {operator.op_type for operator in what.profile.operators}
    assert what.placement.nodes.keys() == {CPU}
    assert isinstance(what.capability, Missing) or what.capability > (0, 0)
    fixed = gpu._look(workshop, Plan().with_remedies("fix_dimensions"))
    assert fixed.model.free_inputs == 0


def test_the_stage_is_the_hardware_stage_of_its_target(monkeypatch):
    asked = []

    def fit(name):
        return lambda _workshop, plan, _goal: asked.append(name) or (plan, Decision((), ()))

    monkeypatch.setattr(fix_module, "fit_gpu", fit("gpu"))
    monkeypatch.setattr(fix_module, "fit_hardware", fit("cpu"))
    for stage in ("tune_quantization", "restructure_graph", "retune_quantization"):
        monkeypatch.setattr(fix_module, stage, fit(stage))
    monkeypatch.setattr(fix_module, "leave_one_out", lambda _workshop, plan, decisions, _goal: (plan, decisions))
    standard = Variant("onnxruntime", "a.onnx")
    for target in ("gpu", "cpu"):
        workshop = StubWorkshop({})
        workshop.bench.case = Case(standard=standard, variant=standard, target=target)
        fix_module._stages(workshop, Goal())
    assert [name for name in asked if name in {"gpu", "cpu"}] == ["gpu", "cpu"]
