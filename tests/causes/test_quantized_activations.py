"""Causes around quantized activations: what the matrix does not cover."""

from __future__ import annotations

import importlib
from functools import cache

import msgspec
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

from calibrating import statically_quantized
from planting import NEW_X86, OFF, OLD_X86, Pair, cnn_feed, fake_host, gather_evidence, tiny_bert, tiny_cnn, tiny_feed
from unlag.causes import poor_calibration, rounded_activations, signed_activations, unfused_quantization
from unlag.causes.contract import diagnose
from unlag.errors import Missing
from unlag.model.draft import open_draft
from unlag.observe.evidence import Evidence
from zoo.poor_calibration import plant as badly_calibrated
from zoo.unfused_quantization import plant as surrounded


@cache
def signed_pairs() -> Evidence:
    """A transformer in QDQ form, whose residuals are read at two places."""
    variant = statically_quantized(tiny_bert(), tiny_feed(), QuantType.QInt8)
    return gather_evidence(Pair(tiny_bert(), {}, variant, {}, isa=NEW_X86))


@cache
def signed_kernels() -> Evidence:
    variant = statically_quantized(tiny_cnn(), cnn_feed(), QuantType.QInt8, QuantFormat.QOperator)
    return gather_evidence(Pair(tiny_cnn(), {}, variant, {}, isa=NEW_X86, feed=cnn_feed()))


def on(evidence: Evidence, isa: tuple[str, ...], architecture: str = "x86_64") -> Evidence:
    return msgspec.structs.replace(evidence, host=fake_host(isa, architecture))


def remedied(evidence: Evidence, cause, pair: Pair, tmp_path) -> tuple[int, Evidence]:
    """Apply the remedy that the finding names, to the files of the pair."""
    finding = diagnose(evidence, cause)
    remedy = next(r for r in cause.remedies if finding.remedy in {None, r.id})
    paths = {"standard": tmp_path / "standard.onnx", "variant": tmp_path / "variant.onnx"}
    onnx.save(pair.standard, paths["standard"])
    onnx.save(pair.variant, paths["variant"])
    variants = [
        msgspec.structs.replace(side.variant, path=str(paths[name]))
        for name, side in (("variant", evidence.variant), ("standard", evidence.standard))
    ]
    draft = open_draft(*variants, evidence.observed)
    changed = remedy.apply(draft)
    return changed, gather_evidence(pair._replace(variant=ir.to_proto(draft.model)))


def test_signed_pairs_that_the_runtime_shifts_on_one_side_only_are_found_and_fused(tmp_path):
    cause = signed_activations.CAUSE
    finding = diagnose(signed_pairs(), cause)
    assert (finding.status, finding.remedy) == ("found", "shift_pairs_to_unsigned"), finding.reason
    variant = statically_quantized(tiny_bert(), tiny_feed(), QuantType.QInt8)
    pair = Pair(tiny_bert(), {}, variant, {}, isa=NEW_X86)
    changed, after = remedied(signed_pairs(), cause, pair, tmp_path)
    assert changed
    assert diagnose(after, cause).status == "ruled_out"
    counts = [
        sum(node.op_type == "QLinearMatMul" for node in evidence.variant.executed.nodes)
        for evidence in (signed_pairs(), after)
    ]
    assert counts[0] < counts[1]


@pytest.mark.parametrize(
    ("isa", "remedy"), [(NEW_X86, "shift_to_unsigned"), (OLD_X86, "shift_all_to_unsigned")], ids=["VNNI", "AVX2"]
)
def test_weights_are_shifted_too_where_sums_would_be_clipped(isa, remedy):
    assert diagnose(on(signed_kernels(), isa), signed_activations.CAUSE).remedy == remedy


@pytest.mark.parametrize(
    ("isa", "architecture"), [((*NEW_X86, "avx_vnni_int8"), "x86_64"), (("asimddp",), "aarch64")], ids=["x86", "ARM"]
)
def test_signed_kernels_are_fast_elsewhere(isa, architecture):
    finding = diagnose(on(signed_kernels(), isa, architecture), signed_activations.CAUSE)
    assert finding.status == "ruled_out"


def test_pairs_that_are_left_because_passes_are_off_are_another_cause():
    pair = Pair(tiny_cnn(), {}, statically_quantized(tiny_cnn(), cnn_feed()), OFF, isa=NEW_X86, feed=cnn_feed())
    finding = diagnose(gather_evidence(pair), unfused_quantization.CAUSE)
    assert finding.status == "ruled_out"
    assert "off" in finding.reason


def test_pairs_go_by_what_was_executed(tmp_path):
    changed, after = remedied(gather_evidence(surrounded()), unfused_quantization.CAUSE, surrounded(), tmp_path)
    assert changed
    assert diagnose(after, unfused_quantization.CAUSE).reason.startswith("0 of 0")


def test_scales_go_by_what_was_observed(tmp_path):
    pair = badly_calibrated()
    changed, after = remedied(gather_evidence(pair), poor_calibration.CAUSE, pair, tmp_path)
    assert changed == 2
    assert diagnose(after, poor_calibration.CAUSE).status == "ruled_out"


@pytest.mark.parametrize("cause", [poor_calibration.CAUSE, rounded_activations.CAUSE], ids=lambda cause: cause.id)
def test_without_values_it_is_not_checked(cause):
    evidence = gather_evidence(badly_calibrated())
    blind = msgspec.structs.replace(evidence.variant, values=Missing("too large"))
    finding = diagnose(msgspec.structs.replace(evidence, variant=blind), cause)
    assert finding.status == "not_checked"
    assert "too large" in finding.reason


@pytest.mark.parametrize("name", ["poor_calibration", "rounded_activations", "unfused_quantization"])
def test_a_standard_with_the_same_fault_excuses(name):

    cause = importlib.import_module(f"unlag.causes.{name}").CAUSE
    pair = importlib.import_module(f"zoo.{name}").plant()
    same = gather_evidence(pair._replace(standard=pair.variant))
    assert diagnose(same, cause).status == "ruled_out"
