"""Answers that depend on the machine, the session or the standard, beyond each cause's plant and twin."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir
import pytest

from planting import NEW_X86, OFF, Pair, editable, fake_host, flash, gather_evidence, tiny_bert
from unlag.causes.contract import Finding, diagnose, find_causes
from unlag.errors import Missing
from unlag.measure.host import Host
from unlag.observe.evidence import Evidence
from zoo import emulated_float16, saturating_integers, unfused_activation

CAUSES = {cause.id: cause for cause in find_causes()}


def ask(evidence: Evidence, cause: str) -> Finding:
    return diagnose(evidence, CAUSES[cause])


def on(evidence: Evidence, host: Host) -> Evidence:
    return msgspec.structs.replace(evidence, host=host)


def unknown_isa() -> Host:
    host = fake_host(())
    return msgspec.structs.replace(host, cpu=msgspec.structs.replace(host.cpu, isa=Missing("no /proc/cpuinfo")))


@pytest.fixture(scope="module")
def saturating() -> Evidence:
    return gather_evidence(saturating_integers.plant())


@pytest.fixture(scope="module")
def emulated() -> Evidence:
    return gather_evidence(emulated_float16.plant())


@pytest.fixture(scope="module")
def whole_flash() -> Evidence:
    variant = flash(
        int8_weights=True,
        per_tensor=True,
        fp16_activations=True,
        segmented_qkv=True,
        extra_copies=True,
        drop_scale=True,
    )
    return gather_evidence(Pair(tiny_bert(), {}, variant, OFF))


def test_sums_are_exact_with_vnni_and_on_arm(saturating):
    vnni = ask(on(saturating, fake_host(NEW_X86)), "saturating_integers")
    assert vnni.status == "ruled_out"
    assert "avx512_vnni" in vnni.reason
    arm = ask(on(saturating, fake_host(("asimddp",), "aarch64")), "saturating_integers")
    assert arm.status == "ruled_out"
    assert "aarch64" in arm.reason


def test_float16_is_fine_where_the_cpu_has_it(emulated):
    assert ask(on(emulated, fake_host(NEW_X86)), "emulated_float16").status == "ruled_out"


@pytest.mark.parametrize(("name", "cause"), [("saturating", "saturating_integers"), ("emulated", "emulated_float16")])
def test_an_unknown_machine_is_not_checked(name, cause, request):
    finding = ask(on(request.getfixturevalue(name), unknown_isa()), cause)
    assert finding.status == "not_checked"
    assert "no /proc/cpuinfo" in finding.reason


def test_the_exact_option_rules_saturation_out():
    plant = saturating_integers.plant()
    evidence = gather_evidence(plant._replace(variant_options={"config.session.x64quantprecision": "1"}))
    assert ask(evidence, "saturating_integers").status == "ruled_out"


def test_every_trait_of_the_whole_recipe_is_found_and_nothing_else(whole_flash):
    found = {cause for cause in CAUSES if ask(whole_flash, cause).status == "found"}
    assert found == {
        "coarse_weight_scales",
        "dequantized_weights",
        "disabled_graph_passes",
        "emulated_float16",
        "missing_attention_scale",
        "redundant_copies",
        "unfused_attention",
    }


def test_swapping_the_sides_finds_no_lag(whole_flash):
    swapped = msgspec.structs.replace(
        whole_flash, standard=whole_flash.variant, variant=whole_flash.standard, weights={}
    )
    found = {cause for cause in CAUSES if ask(swapped, cause).status == "found"}
    assert found <= {"missing_attention_scale"}, "scales still differ, the other way round"


def test_a_spelling_that_no_pass_fuses_is_found_with_passes_off_too():
    plant = unfused_activation.plant()
    assert ask(gather_evidence(plant._replace(variant_options=OFF)), "unfused_activation").status == "found"
    alike = gather_evidence(Pair(tiny_bert(), {}, tiny_bert(), OFF))
    assert ask(alike, "unfused_activation").status == "ruled_out"


def test_a_scale_folded_into_the_query_weights_is_not_missing():
    model = editable(flash(drop_scale=True, segmented_qkv=True))
    for name, value in model.graph.initializers.items():
        if ".query." in name and name.endswith((".weight", ".bias")):
            value.const_value = ir.tensor(value.const_value.numpy() * np.float32(0.25), name=name)
    evidence = gather_evidence(Pair(tiny_bert(), {}, ir.to_proto(model), {}))
    assert ask(evidence, "missing_attention_scale").status == "ruled_out"


def test_missing_evidence_is_not_checked_with_its_reason(emulated):
    blind = msgspec.structs.replace(
        emulated, variant=msgspec.structs.replace(emulated.variant, executed=Missing("gone"))
    )
    assert ask(blind, "emulated_float16") == Finding("not_checked", "gone")
