from __future__ import annotations

from functools import cache

import msgspec
import pytest

from planting import NEW_X86, OLD_X86, Pair, editable, flash, gather_evidence, tiny_bert, tiny_feed
from quantizing import dynamic
from unlag.causes.contract import diagnose
from unlag.causes.missing_integer_dot_product import CAUSE as NO_DOT_PRODUCT
from unlag.causes.rounded_weights import CAUSE as ROUNDED
from unlag.causes.small_dynamic_products import CAUSE as SMALL
from unlag.causes.small_dynamic_products import is_small
from unlag.causes.unoptimized_integer_kernel import CAUSE as UNOPTIMIZED
from unlag.causes.unpacked_block_weights import CAUSE as UNPACKED
from unlag.errors import Missing
from unlag.measure.statistics import Interval
from unlag.model.draft import OnnxDraft
from unlag.model.variant import Variant
from unlag.observe.evidence import Evidence
from unlag.runtimes.contract import Operator, Profile
from zoo import missing_integer_dot_product, rounded_weights, small_dynamic_products, unpacked_block_weights


@cache
def evidence_of(pair: str) -> Evidence:
    return gather_evidence(
        {
            "no dot product": missing_integer_dot_product.plant,
            "rounded": rounded_weights.plant,
            "blocks": unpacked_block_weights.plant,
            "small": small_dynamic_products.plant,
        }[pair]()
    )


def on(evidence: Evidence, isa: tuple[str, ...] | Missing) -> Evidence:
    cpu = msgspec.structs.replace(evidence.host.cpu, isa=isa)
    return msgspec.structs.replace(evidence, host=msgspec.structs.replace(evidence.host, cpu=cpu))


@pytest.mark.parametrize("isa", ["avx512_vnni", "avx_vnni", "amx_int8"])
def test_an_instruction_for_int8_rules_it_out_by_its_name(isa):
    finding = diagnose(on(evidence_of("no dot product"), (*OLD_X86, isa)), NO_DOT_PRODUCT)
    assert finding.status == "ruled_out"
    assert isa in finding.reason


def test_an_unknown_cpu_is_not_judged():
    finding = diagnose(on(evidence_of("no dot product"), Missing("not readable")), NO_DOT_PRODUCT)
    assert finding.status == "not_checked"
    assert "not readable" in finding.reason


def test_without_the_standards_profile_nothing_is_compared():
    for name, cause in {"no dot product": NO_DOT_PRODUCT, "blocks": UNPACKED, "small": SMALL}.items():
        evidence = evidence_of(name)
        blind = msgspec.structs.replace(evidence.standard, profile=Missing("not profiled"))
        finding = diagnose(msgspec.structs.replace(evidence, standard=blind), cause)
        assert finding.status == "not_checked", finding.reason
        assert "not profiled" in finding.reason


def test_products_of_other_sizes_are_not_compared():
    evidence = evidence_of("no dot product")
    operators = tuple(
        msgspec.structs.replace(o, output_shapes=((1, 128, 511),)) for o in evidence.standard.profile.operators
    )
    profile = msgspec.structs.replace(evidence.standard.profile, operators=operators)
    other = msgspec.structs.replace(evidence.standard, profile=profile)
    finding = diagnose(msgspec.structs.replace(evidence, standard=other), NO_DOT_PRODUCT)
    assert finding.status == "not_checked"


def test_the_remedy_without_a_dot_product_leaves_no_integer_product():
    quantized = dynamic(tiny_bert(), op_types=["MatMul"])
    draft = OnnxDraft(Variant("onnxruntime", ""), editable(quantized), editable(tiny_bert()))
    assert NO_DOT_PRODUCT.remedies[0].apply(draft) == 8
    assert {"MatMulInteger", "DynamicQuantizeLinear"}.isdisjoint(node.op_type for node in draft.model.graph)
    assert NO_DOT_PRODUCT.remedies[0].apply(draft) == 0


def test_a_loss_that_is_not_measurable_is_no_cause():
    evidence = evidence_of("rounded")
    same = msgspec.structs.replace(evidence, accuracy_change=Interval(-0.1, -0.4, 0.2))
    assert diagnose(evidence, ROUNDED).status == "found"
    assert diagnose(same, ROUNDED).status == "ruled_out"
    assert diagnose(msgspec.structs.replace(evidence, accuracy_change=None), ROUNDED).status == "found"


@pytest.mark.parametrize(
    ("isa", "rows", "remedy"),
    [
        (NEW_X86, 1, "integer_block_products"),
        (OLD_X86, 1, "float_block_products"),
        (NEW_X86, 128, "integer_block_products"),
    ],
)
def test_the_remedy_for_blocks_follows_the_cpu(isa, rows, remedy):
    evidence = on(_slow_blocks(rows), isa)
    finding = diagnose(evidence, UNPACKED)
    assert (finding.status, finding.remedy) == ("found", remedy)


def test_blocks_in_integers_that_lose_are_unpacked():
    finding = diagnose(_slow_blocks(1, accuracy_level=4), UNPACKED)
    assert (finding.status, finding.remedy) == ("found", "float_block_products")


def _slow_blocks(rows: int, accuracy_level: int = 0) -> Evidence:
    """Recorded times over the planted graph, with names that its nodes have."""
    evidence = evidence_of("blocks")
    executed = evidence.variant.executed
    nodes = tuple(
        msgspec.structs.replace(n, attributes={**n.attributes, "accuracy_level": accuracy_level})
        if n.op_type == "MatMulNBits"
        else n
        for n in executed.nodes
    )
    sides = {
        name: msgspec.structs.replace(
            getattr(evidence, name),
            profile=Profile(tuple(_product(i, op_type, time_ms, rows) for i in range(3)), 3 * time_ms + 0.1, 8),
        )
        for name, op_type, time_ms in (("standard", "MatMul", 0.1), ("variant", "MatMulNBits", 0.3))
    }
    sides["variant"] = msgspec.structs.replace(
        sides["variant"], executed=msgspec.structs.replace(executed, nodes=nodes)
    )
    return msgspec.structs.replace(evidence, **sides)


def _product(number: int, op_type: str, time_ms: float, rows: int) -> Operator:
    shapes = ((1, rows, 1024), (1024, 1024)), ((1, rows, 1024),)
    return Operator(f"product{number}", op_type, "gemm", "float32", time_ms, "CPUExecutionProvider", *shapes)


def test_both_remedies_for_blocks_work_once():
    variant = unpacked_block_weights.plant().variant
    for remedy in UNPACKED.remedies:
        draft = OnnxDraft(Variant("onnxruntime", ""), editable(variant), editable(variant))
        assert remedy.apply(draft) == 3
        assert remedy.apply(draft) == 0


def test_blocks_that_the_runtime_makes_itself_are_unpacked_in_the_file():
    draft = OnnxDraft(Variant("onnxruntime", ""), editable(flash(int8_weights=True)), editable(tiny_bert()))
    unpack = next(remedy for remedy in UNPACKED.remedies if remedy.id == "float_block_products")
    assert unpack.apply(draft) == 8
    assert unpack.apply(draft) == 0


@pytest.mark.parametrize(
    ("inputs", "outputs", "small"), [(16, 4096, True), (4096, 8, True), (128, 128, True), (384, 384, False)]
)
def test_small_is_thin_or_of_few_weights(inputs, outputs, small):
    assert is_small(inputs, outputs) == small


def test_the_remedy_for_small_products_leaves_large_ones():
    model = small_dynamic_products.layers([(16, 1024), (1024, 1024), (1024, 16)])
    draft = OnnxDraft(Variant("onnxruntime", ""), editable(dynamic(model, op_types=["MatMul"])), editable(model))
    assert SMALL.remedies[0].apply(draft) == 2
    assert sum(node.op_type == "MatMulInteger" for node in draft.model.graph) == 1


def test_a_slow_kernel_that_costs_little_is_ruled_out():
    # A Softmax that is four times as slow, of a run that is a thousand times as long.
    operators = [
        Operator("softmax", op_type, "activation", precision, time_ms, "CPUExecutionProvider", (), ((1, 4, 8, 8),))
        for op_type, precision, time_ms in (("Softmax", "float32", 0.01), ("QLinearSoftmax", "uint8", 0.04))
    ]
    pair = Pair(tiny_bert(), {}, tiny_bert(), {}, feed=tiny_feed())
    for run_ms, status in ((0.1, "found"), (40.0, "ruled_out")):
        profiles = {
            "standard_profile": Profile((operators[0],), run_ms, 8),
            "variant_profile": Profile((operators[1],), run_ms, 8),
        }
        assert diagnose(gather_evidence(pair._replace(**profiles)), UNOPTIMIZED).status == status


def test_pooling_of_codes_is_told_from_pooling_of_floats():
    for precision, status in (("uint8", "found"), ("float32", "ruled_out")):
        pools = [
            Operator("pool", "MaxPool", "other", kind, ms, "CPUExecutionProvider", (), ((1, 4, 8, 8),))
            for kind, ms in (("float32", 0.01), (precision, 0.4))
        ]
        pair = Pair(
            tiny_bert(), {}, tiny_bert(), {},
            standard_profile=Profile((pools[0],), 1.0, 8), variant_profile=Profile((pools[1],), 1.0, 8),
        )  # fmt: skip
        assert diagnose(gather_evidence(pair), UNOPTIMIZED).status == status
