"""What the matrix does not ask of the causes that look at how a graph is written."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir
import pytest

from planting import OFF, Pair, cnn_feed, editable, gather_evidence, tiny_bert, tiny_cnn
from unlag.causes.contract import diagnose, find_causes
from unlag.runtimes.contract import Operator, Profile
from zoo import (
    control_flow,
    extra_outputs,
    initializers_as_inputs,
    pruned_channels_kept,
    slow_operator,
    unfolded_batch_norm,
    unfused_layer_norm,
)

CAUSES = {cause.id: cause for cause in find_causes()}


def ask(evidence, name):
    return diagnose(evidence, CAUSES[name])


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("unfused_layer_norm", unfused_layer_norm.twin),
        ("unfolded_batch_norm", unfolded_batch_norm.twin),
        ("control_flow", control_flow.twin),
    ],
)
def test_a_file_that_passes_would_mend_is_not_blamed_where_they_are_off(name, twin):
    pair = twin()
    alike = pair._replace(standard=pair.variant, variant_options=OFF)
    finding = ask(gather_evidence(alike), name)
    assert finding.status == "ruled_out"
    assert "passes are off" in finding.reason


def test_a_spelling_that_no_pass_knows_is_found_with_passes_off_too():
    plant = unfused_layer_norm.plant()
    assert ask(gather_evidence(plant._replace(variant_options=OFF)), "unfused_layer_norm").status == "found"


def test_loops_and_branches_have_a_remedy_each():
    assert ask(gather_evidence(control_flow.plant()), "control_flow").remedy == "unroll_loops"
    branching = control_flow.twin()._replace(standard_options=OFF, variant_options=OFF)
    finding = ask(gather_evidence(branching), "control_flow")
    assert (finding.status, finding.remedy) == ("found", None)


def test_scattered_zeros_are_ruled_out_with_their_share():
    pair = pruned_channels_kept.twin()
    finding = ask(gather_evidence(pair._replace(standard=tiny_bert())), "pruned_channels_kept")
    assert finding.status == "ruled_out"
    assert "scattered" in finding.reason


def test_pruned_filters_of_a_convolution_are_found():
    standard, variant = editable(tiny_cnn()), editable(tiny_cnn())
    assert pruned_channels_kept.standardize(standard) > 0
    pruned_channels_kept.infect(variant)
    pair = Pair(ir.to_proto(standard), {}, ir.to_proto(variant), {}, feed=cnn_feed())
    assert ask(gather_evidence(pair), "pruned_channels_kept").status == "found"


def test_initializers_that_the_workload_feeds_are_inputs():
    evidence = gather_evidence(initializers_as_inputs.plant())
    fed = dict.fromkeys(evidence.variant.graph.listed_inputs, (1,))
    finding = ask(msgspec.structs.replace(evidence, input_shapes=fed), "initializers_as_inputs")
    assert finding.status == "ruled_out"
    assert "feeds" in finding.reason


def test_outputs_of_other_names_can_not_be_told_apart():
    model = editable(extra_outputs.plant().variant)
    for number, value in enumerate(model.graph.outputs):
        value.name = f"out{number}"
    pair = Pair(tiny_bert(), {}, ir.to_proto(model), {})
    assert ask(gather_evidence(pair), "extra_outputs").status == "not_checked"


def test_slow_operators_that_take_no_time_are_ruled_out():
    evidence = gather_evidence(slow_operator.plant())
    for share, status in ((0.001, "ruled_out"), (0.2, "found")):
        operators = tuple(
            Operator(
                name=op_type, op_type=op_type, kind="gemm", precision="float32", time_ms=time_ms, kernel="cpu",
                input_shapes=(), output_shapes=(),
            )
            for op_type, time_ms in (("Einsum", share), ("MatMul", 1 - share))
        )  # fmt: skip
        profile = Profile(operators=operators, run_ms=1.0, runs=1)
        profiled = msgspec.structs.replace(evidence, variant=msgspec.structs.replace(evidence.variant, profile=profile))
        assert ask(profiled, "slow_operator").status == status


def test_a_constant_in_another_role_is_not_compared():
    """As many products by a number on both sides, but not for the same thing."""
    model = editable(tiny_bert())
    for node in [n for n in model.graph if str(n.name).endswith("gelu.half")]:
        relu = ir.node("Relu", [node.inputs[0]], name=f"{node.name}.relu")
        relu.outputs[0].name = f"{node.name}.relu.out"
        model.graph.insert_before(node, relu)
        node.replace_input_with(0, relu.outputs[0])
        held = ir.convenience.get_const_tensor(node.inputs[1])
        node.inputs[1].const_value = ir.tensor(np.array(held.numpy() * 2), name=node.inputs[1].name)
    pair = Pair(tiny_bert(), {}, ir.to_proto(model), {})
    assert ask(gather_evidence(pair), "different_constant").status == "ruled_out"
