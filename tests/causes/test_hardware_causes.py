"""Answers that depend on the device, the profile or the session, beyond each plant and twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

import quantizing
from planting import Pair, editable, gather_evidence, tiny_bert
from rewriting import parsed
from unlag.causes.contract import Finding, diagnose, find_causes
from unlag.errors import Missing
from unlag.measure.host_facts import Gpu
from unlag.model.draft import Observed, OnnxDraft
from unlag.model.variant import Variant
from unlag.observe.evidence import Evidence, Side
from unlag.runtimes.contract import Profile
from zoo import (
    batch_dependent_scales,
    blocked_layout,
    dynamic_shapes,
    provider_fallback,
    single_precision_products,
    subnormal_numbers,
    unaligned_dimensions,
)

CAUSES = {cause.id: cause for cause in find_causes()}
ON_CUDA = {"provider": "cuda"}
HALVES = ("compute_in_float16", "compute_in_float16_but_sums", "compute_in_bfloat16")


def ask(evidence: Evidence, cause: str) -> Finding:
    return diagnose(evidence, CAUSES[cause])


def variant(evidence: Evidence, **parts) -> Evidence:
    return msgspec.structs.replace(evidence, variant=msgspec.structs.replace(evidence.variant, **parts))


def opened(side: Side, options: dict[str, str]) -> Variant:
    return msgspec.structs.replace(side.variant, options=options)


def drafted(pair: Pair, options: dict[str, str]) -> OnnxDraft:
    model = editable(pair.variant)
    return OnnxDraft(Variant("onnxruntime", "model.onnx", options), model, editable(pair.standard), dict(options))


@pytest.fixture(scope="module")
def fallback() -> Evidence:
    return gather_evidence(provider_fallback.plant())


@pytest.fixture(scope="module")
def blocked() -> Evidence:
    return gather_evidence(blocked_layout.plant())


@pytest.fixture(scope="module")
def dynamic() -> Evidence:
    return gather_evidence(dynamic_shapes.plant())


def test_nothing_falls_back_where_only_the_cpu_was_asked_for(fallback):
    on_cpu = variant(fallback, variant=opened(fallback.variant, {}))
    assert ask(on_cpu, "provider_fallback") == Finding(
        "ruled_out", "only the CPU was asked for: 0 operators can fall back"
    )


def test_a_device_without_a_profile_is_not_checked(fallback):
    blind = msgspec.structs.replace(
        variant(fallback, profile=Missing("not profiled")), host=msgspec.structs.replace(fallback.host, gpus=())
    )
    finding = ask(blind, "provider_fallback")
    assert finding.status == "not_checked"
    assert "no CUDA device" in finding.reason


def test_a_fallback_that_the_standard_has_too_is_no_lag(fallback):
    alike = msgspec.structs.replace(fallback, standard=fallback.variant)
    assert ask(alike, "provider_fallback").status == "ruled_out"


def test_only_where_all_products_fell_back_the_cpu_is_the_remedy(fallback):
    assert ask(fallback, "provider_fallback").remedy == "float_on_device"
    fallen = tuple(op for op in fallback.variant.profile.operators if op.op_type != "MatMul")
    stranded = variant(fallback, profile=Profile(fallen, 1.0, 5))
    assert ask(stranded, "provider_fallback").remedy == "run_on_cpu"


def test_going_to_the_cpu_takes_the_provider_away_once():
    draft = drafted(provider_fallback.plant(), {**ON_CUDA, "threads": "2"})
    advice, go = (remedies_of("provider_fallback")[name] for name in ("keep_on_device", "run_on_cpu"))
    assert advice(draft) == 0
    assert go(draft) == 1
    assert draft.options == {"threads": "2"}
    assert go(draft) == 0


def test_what_has_no_integers_is_to_be_exported_otherwise(fallback):
    plain = tuple(msgspec.structs.replace(op, precision="float32") for op in fallback.variant.profile.operators)
    assert ask(variant(fallback, profile=Profile(plain, 1.0, 5)), "provider_fallback").remedy == "keep_on_device"


def test_integer_products_become_products_that_the_device_has_kernels_for():
    pair = Pair(tiny_bert(), ON_CUDA, quantizing.dynamic(tiny_bert(), op_types=["MatMul"]), ON_CUDA)
    draft = drafted(pair, ON_CUDA)
    before = Counter(node.op_type for node in draft.model.graph)
    assert remedies_of("provider_fallback")["float_on_device"](draft) >= before["MatMulInteger"] > 0
    after = Counter(node.op_type for node in draft.model.graph)
    assert not {"MatMulInteger", "DynamicQuantizeLinear"} & set(after)
    assert after["MatMul"] == before["MatMul"] + before["MatMulInteger"]


def remedies_of(cause: str) -> dict[str, Callable[[OnnxDraft], int]]:
    return {remedy.id: remedy.apply for remedy in CAUSES[cause].remedies}


@pytest.mark.parametrize(("plant", "id_"), [(single_precision_products.plant, id_) for id_ in HALVES])
def test_half_precision_is_put_into_the_draft_once(plant, id_):
    draft = drafted(plant(), ON_CUDA)
    narrow = remedies_of("single_precision_products")[id_]
    assert narrow(draft) > 0
    assert {v.dtype.name for v in draft.model.graph.initializers.values() if len(v.shape) == 2} & {
        "FLOAT16",
        "BFLOAT16",
    }
    assert narrow(draft) == 0


def test_a_device_without_tensor_cores_is_no_case_for_half_precision():
    evidence = gather_evidence(single_precision_products.plant())
    old = msgspec.structs.replace(evidence, host=msgspec.structs.replace(evidence.host, gpus=(gpu("6.1"),)))
    finding = ask(old, "single_precision_products")
    assert finding.status == "ruled_out"
    assert "6.1 has no tensor cores" in finding.reason
    new = msgspec.structs.replace(evidence, host=msgspec.structs.replace(evidence.host, gpus=(gpu("7.0"),)))
    assert ask(new, "single_precision_products").status == "found"


def gpu(capability: str) -> Gpu:
    unread = dict.fromkeys(Gpu.__struct_fields__, Missing("not read"))
    return Gpu(**{**unread, "index": 0, "compute_capability": capability})


def test_crooked_weights_are_filled_up_in_the_draft():
    weight = np.ones((16, 13), np.float32)
    crooked = parsed("g (float[m, 16] x) => (float[m, 13] y) { y = MatMul(x, w) }", w=weight)
    fill = remedies_of("unaligned_dimensions")["pad_dimensions"]
    assert fill(drafted(Pair(crooked, ON_CUDA, crooked, ON_CUDA), ON_CUDA)) == 1
    assert fill(drafted(unaligned_dimensions.plant(), ON_CUDA)) == 0, "only the recorded profile's sizes are crooked"


def test_tensor_cores_are_not_checked_on_the_cpu(blocked):
    finding = ask(blocked, "unaligned_dimensions")
    assert finding.status == "not_checked"
    assert "no CUDA device" in finding.reason


def test_float32_products_and_rare_ones_are_no_case_for_tensor_cores():
    evidence = gather_evidence(unaligned_dimensions.plant())
    swapped = msgspec.structs.replace(evidence, variant=evidence.standard)
    assert ask(swapped, "unaligned_dimensions").status == "ruled_out"
    *products, last = evidence.variant.profile.operators
    quick = msgspec.structs.replace(last, time_ms=1e-6)
    rare = variant(evidence, profile=Profile((*products, quick), 1.0, 5))
    assert ask(rare, "unaligned_dimensions").status == "ruled_out"


def test_blocked_convolutions_in_the_file_are_out_of_reach(blocked):
    in_file = variant(blocked, graph=blocked.variant.executed)
    finding = ask(in_file, "blocked_layout")
    assert finding.status == "ruled_out"
    assert "in the file" in finding.reason


def test_copies_of_a_small_share_are_ruled_out(blocked):
    other = msgspec.structs.replace(blocked.variant.profile.operators[-1], time_ms=100.0)
    profile = Profile((*blocked.variant.profile.operators, other), 1.0, 5)
    assert ask(variant(blocked, profile=profile), "blocked_layout").status == "ruled_out"


def test_a_standard_without_convolutions_is_not_checked(blocked):
    other = msgspec.structs.replace(blocked.standard, profile=Profile((), 1.0, 5))
    assert ask(msgspec.structs.replace(blocked, standard=other), "blocked_layout").status == "not_checked"


@pytest.mark.parametrize(
    ("given", "changed"), [({}, 1), ({"optimization": "layout"}, 1), ({"optimization": "basic"}, 0)]
)
def test_the_level_is_lowered_below_the_layout_pass(given, changed):
    draft = drafted(blocked_layout.plant(), given)
    keep = CAUSES["blocked_layout"].remedies[0].apply
    assert keep(draft) == changed
    assert draft.options == ({"optimization": "extended"} if changed else given)
    assert keep(draft) == 0


def test_shapes_are_known_where_the_inputs_are_fixed(dynamic):
    fixed = tuple(msgspec.structs.replace(i, shape=(2, 8)) for i in dynamic.variant.graph.inputs)
    graph = msgspec.structs.replace(dynamic.variant.graph, inputs=fixed)
    assert ask(variant(dynamic, graph=graph), "dynamic_shapes").status == "ruled_out"


def test_arithmetic_on_shapes_that_takes_no_time_is_ruled_out(dynamic):
    operators = gather_evidence(blocked_layout.plant()).variant.profile.operators
    timed = variant(dynamic, profile=Profile(operators, 1.0, 5))
    finding = ask(timed, "dynamic_shapes")
    assert finding.status == "ruled_out"
    assert "0.0% of the time" in finding.reason


def test_dimensions_are_fixed_from_what_was_seen():
    draft = drafted(dynamic_shapes.plant(), {})
    draft.observed = Observed(dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (2, 8)))
    fix = CAUSES["dynamic_shapes"].remedies[0].apply
    assert fix(draft) == 3
    assert fix(draft) == 0


def test_a_session_that_takes_subnormal_numbers_as_zero_has_no_case():
    evidence = gather_evidence(subnormal_numbers.plant())
    options = {"config.session.set_denormal_as_zero": "1"}
    assert ask(variant(evidence, variant=opened(evidence.variant, options)), "subnormal_numbers").status == "ruled_out"
    draft = drafted(subnormal_numbers.plant(), {})
    treat = CAUSES["subnormal_numbers"].remedies[1].apply
    assert treat(draft) == 1
    assert draft.options == options
    assert treat(draft) == 0


@pytest.mark.parametrize(
    ("shapes", "status"), [({}, "not_checked"), ({"x": ()}, "not_checked"), ({"x": (4, 8)}, "found")]
)
def test_rows_of_the_batch(shapes, status):
    evidence = gather_evidence(batch_dependent_scales.plant())
    asked = msgspec.structs.replace(evidence, input_shapes=shapes)
    assert ask(asked, "batch_dependent_scales").status == status


def test_a_standard_that_is_quantized_alike_is_no_lag():
    evidence = gather_evidence(batch_dependent_scales.plant())
    alike = msgspec.structs.replace(evidence, standard=evidence.variant)
    assert ask(alike, "batch_dependent_scales").status == "ruled_out"
    assert ask(gather_evidence(Pair(tiny_bert(), {}, tiny_bert(), {})), "batch_dependent_scales").status == "ruled_out"
