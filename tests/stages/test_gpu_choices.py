"""What is worth trying on a GPU, decided from recorded profiles."""

from __future__ import annotations

import json

import msgspec
import pytest

from recorded_profiles import FILES, RECORDED, chosen, reasons, seen
from unlag.errors import Missing
from unlag.runtimes.onnxruntime.nvidia import CPU, CUDA
from unlag.stages.gpu import ROUNDS
from unlag.stages.gpu_choices import FLOAT32, Round, choose, copies, fallen, host_share, launch_share

HALF, SUMS, BRAIN = "compute_in_float16", "compute_in_float16_but_sums", "compute_in_bfloat16"
GRAPH = "io_binding=on,cuda_graph=on"
ENGINES = ["provider=tensorrt", "provider=tensorrt,trt_fp16=on", "provider=tensorrt,trt_bf16=on"]


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_profile_says_that_it_is_no_measurement(name):
    note = json.loads((RECORDED / f"{name}.json").read_text())["note"]
    assert note.startswith("Not a measurement")


WANTED: dict[str, dict[Round, list[str]]] = {
    "gpu_float32_products": {
        "placement": [],
        "launches": ["io_binding=on"],
        "precision": ["tf32=on", HALF, SUMS, BRAIN],
        "alignment": [],
        "kernels": [],
        "engines": ENGINES,
    },
    "gpu_memory_bound": {"launches": ["io_binding=on"], "precision": [HALF, SUMS, BRAIN]},
    "gpu_unaligned_products": {"precision": [], "alignment": ["pad_dimensions"]},
    "gpu_copied_integers": {"placement": [FLOAT32], "launches": ["io_binding=on"], "engines": ENGINES[:2]},
    "gpu_tiny_kernels": {"placement": [], "launches": ["io_binding=on", GRAPH], "precision": [], "alignment": []},
    "gpu_fallen_operators": {
        "placement": ["inline_branches", "unroll_loops", "respell_operators", "fix_dimensions"],
        "launches": ["io_binding=on"],
        "kernels": ["nhwc=on"],
    },
    "gpu_fused_attention": {
        "launches": [],
        "kernels": ["attention=flash", "attention=cudnn", "attention=efficient", "attention=tensorrt"],
    },
}


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in WANTED.items() for part in parts])
def test_each_profile_leads_to_its_own_choices(name, part):
    assert chosen(seen(name), part) == WANTED[name][part]


def test_every_recorded_profile_is_tested():
    assert sorted(WANTED) == FILES


@pytest.mark.parametrize("name", FILES)
def test_every_choice_and_every_refusal_has_a_number_in_its_reason(name):
    for part in ROUNDS:
        choices, ruled_out = choose(seen(name), part)
        for reason in [*(c.why for c in choices), *(r.reason for r in ruled_out)]:
            assert any(c.isdigit() for c in reason) or "default" in reason, reason


def test_tf32_is_on_unless_it_was_switched_off():
    plain = seen("gpu_float32_products", options={"provider": "cuda"})
    assert "tf32=on" not in chosen(plain, "precision")
    assert "default" in reasons(plain, "precision")["tf32=on"]


def test_tf32_wins_nothing_where_memory_is_the_limit():
    assert "0.5 FLOP a byte" in reasons(seen("gpu_memory_bound"), "precision")["tf32=on"]


@pytest.mark.parametrize(
    ("capability", "wanted", "refused"),
    [
        ((6, 1), [], {"tf32=on", HALF}),
        ((7, 5), [HALF, SUMS], {"tf32=on", BRAIN}),
        ((9, 0), ["tf32=on", HALF, SUMS, BRAIN], set()),
    ],
)
def test_numbers_that_the_device_does_not_have_are_not_tried(capability, wanted, refused):
    what = seen("gpu_float32_products", capability=capability)
    assert chosen(what, "precision") == wanted
    told = reasons(what, "precision")
    assert set(told) == refused
    assert all(f"compute capability {capability[0]}.{capability[1]}" in reason for reason in told.values())


def test_where_the_device_is_unknown_a_try_shows():
    unknown = seen("gpu_float32_products", capability=Missing("NVML does not start"))
    assert chosen(unknown, "precision") == ["tf32=on", HALF, SUMS, BRAIN]


def test_crooked_sizes_are_tried_with_half_precision_at_once():
    """In float16 alone they may well be slower, and then nothing would ever be filled up."""
    half = seen("gpu_unaligned_products")
    single = [msgspec.structs.replace(o, precision="float32") for o in half.profile.operators]
    what = seen("gpu_unaligned_products", profile=msgspec.structs.replace(half.profile, operators=tuple(single)))
    assert chosen(what, "precision") == [HALF, SUMS, f"{HALF} and pad_dimensions", BRAIN]
    assert chosen(what, "alignment") == []


def test_even_sizes_need_no_filling_up():
    assert "0 of 6" in reasons(seen("gpu_fused_attention"), "alignment")["pad_dimensions"]


def test_a_run_that_waits_for_the_host_gets_no_other_numbers_until_launches_are_recorded():
    what = seen("gpu_tiny_kernels")
    assert launch_share(what.profile) > 0.9
    assert "93%" in reasons(what, "precision")[HALF]
    recorded = seen("gpu_tiny_kernels", options={"provider": "cuda", "io_binding": "on", "cuda_graph": "on"})
    assert chosen(recorded, "precision") == [HALF, SUMS, BRAIN]
    assert chosen(recorded, "launches") == []


def test_a_busy_device_gains_nothing_from_a_recording():
    what = seen("gpu_float32_products")
    assert launch_share(what.profile) < 0.02
    assert "the device is busy" in reasons(what, "launches")[GRAPH]


def test_a_recording_fixes_the_dimensions_that_are_free_or_can_not_be_made():
    free, fixed = seen("gpu_tiny_kernels"), seen("gpu_tiny_kernels", free_inputs=0)
    assert choose(free, "launches")[0][-1].remedies == ("fix_dimensions",)
    assert choose(fixed, "launches")[0][-1].remedies == ()
    varied = seen("gpu_tiny_kernels", unfixable="the workload has inputs of 12 shapes")
    assert reasons(varied, "launches")[GRAPH] == "a recording holds for one shape: the workload has inputs of 12 shapes"


def test_copies_control_flow_and_texts_can_not_be_recorded():
    integers, loop = seen("gpu_copied_integers"), seen("gpu_fallen_operators")
    assert (copies(integers.profile), len(fallen(integers.profile))) == (4, 4)
    assert "4 copies and 4 operators on the CPU" in reasons(integers, "launches")[GRAPH]
    assert "control flow" in reasons(loop, "launches")[GRAPH]
    texts = seen("gpu_tiny_kernels", numbers_only=False)
    assert chosen(texts, "launches") == []
    assert "no tensor of numbers" in reasons(texts, "launches")["io_binding=on"]


def test_arithmetic_on_shapes_belongs_on_the_cpu():
    assert [o.op_type for o in fallen(seen("gpu_fallen_operators").profile)] == ["Unique", "Loop"]


def test_what_the_cpu_computes_is_the_hosts_time_and_no_launch():
    profile = seen("gpu_copied_integers").profile
    assert host_share(profile) > 0.8
    assert launch_share(profile) < 0.02


def test_fixed_dimensions_take_the_copies_around_shapes_away_unless_shapes_differ():
    assert "fix_dimensions" in chosen(seen("gpu_fallen_operators"), "placement")
    told = reasons(seen("gpu_copied_integers"), "placement")
    assert told == {"fix_dimensions": "the workload has inputs of 12 shapes, and a fixed model takes one"}


def test_kernels_of_attention_need_their_types_and_devices():
    turing = seen("gpu_fused_attention", capability=(7, 5))
    assert chosen(turing, "kernels") == ["attention=efficient", "attention=tensorrt"]
    held = seen("gpu_fused_attention")
    single = [msgspec.structs.replace(o, precision="float32") for o in held.profile.operators]
    what = seen("gpu_fused_attention", profile=msgspec.structs.replace(held.profile, operators=tuple(single)))
    assert chosen(what, "kernels") == ["attention=efficient"]
    assert "half precision" in reasons(what, "kernels")["attention=flash"]
    decided = seen("gpu_fused_attention", options={"provider": "cuda", "attention": "flash"})
    assert chosen(decided, "kernels") == []


def test_without_fusion_there_are_no_kernels_to_choose_among():
    assert "0 fused" in reasons(seen("gpu_float32_products"), "kernels")["attention=flash"]
    assert reasons(seen("gpu_tiny_kernels"), "kernels") == {}


def test_engines_need_a_build_that_has_them():
    what = seen("gpu_tiny_kernels", providers=(CUDA, CPU))
    assert chosen(what, "engines") == []
    assert "no TensorRT" in reasons(what, "engines")["provider=tensorrt"]
