"""A plan's model: rewrites first, then quantization, session options last."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from msgspec.structs import replace
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16

from calibrating import statically_quantized
from planting import LAYERS, cnn_feed, flash, tiny_bert, tiny_cnn, tiny_feed
from quantizing import dynamic
from unlag.causes.contract import Step, find_causes
from unlag.errors import UnlagError, UsageError
from unlag.model.case import Case
from unlag.model.graph import read_model
from unlag.model.variant import Variant
from unlag.runtimes.onnxruntime import RUNTIME
from unlag.stages import quantize
from unlag.stages.layers import find_layers
from unlag.stages.plan import PRECISIONS, Plan, build, remedies_of

DEQUANTIZE = {"DequantizeLinear"}


@pytest.fixture
def case(tmp_path) -> Case:
    models = {
        "standard": tiny_bert(),
        "flash": flash(
            int8_weights=True, per_tensor=False, fp16_activations=True, segmented_qkv=True, extra_copies=True
        ),
    }
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    return Case(
        standard=Variant("onnxruntime", str(tmp_path / "standard.onnx"), {"threads": "1"}),
        variant=Variant("onnxruntime", str(tmp_path / "flash.onnx"), {"optimization": "off"}),
    )


def outputs(variant: Variant) -> np.ndarray:
    return ort.InferenceSession(variant.path).run(None, tiny_feed())[0]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.vdot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


def operators(variant: Variant) -> list[str]:
    return [node.op_type for node in onnx.load(variant.path).graph.node]


def test_the_empty_plan_is_the_variant(case, tmp_path):
    built = build(Plan(), case, tmp_path / "plan.onnx")
    assert built.options == {"optimization": "off"}
    assert np.array_equal(outputs(built), outputs(case.variant))


def test_float32_takes_the_standards_own_weights(case, tmp_path):
    built = build(Plan("float32"), case, tmp_path / "plan.onnx")
    ops = operators(built)
    assert ops.count("DequantizeLinear") <= 3, "only tables of embeddings stay"
    tensors = onnx.load(built.path).graph.initializer
    assert not [tensor.name for tensor in tensors if tensor.data_type == onnx.TensorProto.FLOAT16]
    assert cosine(outputs(built), outputs(case.standard)) > 0.99
    own = {tensor.raw_data for tensor in onnx.load(case.standard.path).graph.initializer}
    inner = [tensor for tensor in tensors if list(tensor.dims) == [64, 128]]
    assert inner
    assert all(tensor.raw_data in own for tensor in inner), "to the last bit"
    assert cosine(outputs(built), outputs(case.standard)) > cosine(outputs(case.variant), outputs(case.standard))


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p.startswith("dynamic")])
def test_int8_is_small_valid_and_leaves_no_other_file(case, tmp_path, precision):
    folder = tmp_path / "plans"
    folder.mkdir()
    built = build(Plan(precision), case, folder / "plan.onnx")
    assert [path.name for path in folder.iterdir()] == ["plan.onnx"]
    assert "MatMulInteger" in operators(built)
    assert Path(built.path).stat().st_size < 0.6 * Path(case.standard.path).stat().st_size
    assert cosine(outputs(built), outputs(case.standard)) > 0.8
    onnx.checker.check_model(built.path, full_check=True)


def test_7_bits_are_kept_to(case, tmp_path):
    def largest(precision: str) -> int:
        model = onnx.load(build(Plan(precision), case, tmp_path / f"{precision}.onnx").path)
        read = {node.input[1] for node in model.graph.node if node.op_type == "MatMulInteger"}
        codes = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name in read]
        assert codes
        return max(int(np.abs(array.astype(int)).max()) for array in codes)

    assert largest("dynamic_int8_7bit") <= 64 < largest("dynamic_int8")


def test_remedies_see_the_float_model_and_options_come_last(case, tmp_path):
    known = remedies_of("graph")
    graph_remedies = [name for name, remedy in known.items() if remedy.step in {Step.CLEAN, Step.RESTORE}]
    plan = Plan("dynamic_int8", tuple(graph_remedies)).with_options({"spinning": "off", "optimization": "all"})
    built = build(plan, case, tmp_path / "plan.onnx")
    assert built.options == {"optimization": "all", "spinning": "off"}
    assert operators(built).count("Transpose") < operators(case.variant).count("Transpose")
    assert "MatMulInteger" in operators(built)


def test_the_order_in_which_a_plan_names_its_remedies_does_not_matter(case, tmp_path):
    names = list(remedies_of("graph"))
    there = build(Plan("float32", tuple(names)), case, tmp_path / "there.onnx")
    back = build(Plan("float32", tuple(names[::-1])), case, tmp_path / "back.onnx")
    assert Path(there.path).read_bytes() == Path(back.path).read_bytes()


def test_a_plan_builds_the_same_file_twice(case, tmp_path):
    built = [build(Plan("dynamic_int8"), case, tmp_path / f"{k}.onnx") for k in range(2)]
    assert Path(built[0].path).read_bytes() == Path(built[1].path).read_bytes()


def test_a_plan_from_the_standard_has_the_standards_model_and_options(case, tmp_path):
    built = build(Plan(from_standard=True), case, tmp_path / "plan.onnx")
    assert built.options == {"threads": "1"}
    assert np.array_equal(outputs(built), outputs(case.standard))


def test_remedies_are_known_by_dimension_in_the_order_of_their_steps():
    steps = [remedy.step for remedy in remedies_of("graph").values()]
    assert steps == sorted(steps)
    everything = [r.id for cause in find_causes() for r in cause.remedies if r.safety != "ADVICE"]
    assert set(remedies_of("graph")) <= set(everything)


def test_an_unknown_remedy_is_our_fault(case, tmp_path):
    with pytest.raises(UnlagError, match="unknown remedies: magic") as caught:
        build(Plan(remedies=("magic",)), case, tmp_path / "plan.onnx")
    assert caught.value.exit_code == 4
    assert not (tmp_path / "plan.onnx").exists()


def test_a_quantizer_that_fails_leaves_nothing(case, tmp_path, monkeypatch):
    def refuses(*_: object, **__: object) -> None:
        raise UsageError("the quantizer does not take it")

    monkeypatch.setattr(quantize, "quantize_dynamic", refuses)
    with pytest.raises(UsageError, match="does not take it"):
        build(Plan("dynamic_int8"), case, tmp_path / "plan.onnx")
    assert not list(tmp_path.glob("plan*"))


SCHEMES = [name for name in PRECISIONS if name not in {"as_is", "float32", "float16"}]
FEEDS = [tiny_feed(seed=seed) for seed in range(4)]


def built(plan: Plan, case: Case, path: Path) -> Variant:
    return build(plan, case, path, feeds=FEEDS)


@pytest.mark.parametrize("precision", SCHEMES)
def test_every_scheme_is_small_valid_and_about_as_right(case, tmp_path, precision):
    variant = built(Plan(precision, from_standard=True), case, tmp_path / "plan.onnx")
    assert [path.name for path in tmp_path.glob("plan*")] == ["plan.onnx"]
    onnx.checker.check_model(variant.path, full_check=True)
    assert Path(variant.path).stat().st_size < 0.6 * Path(case.standard.path).stat().st_size
    coarse = {"blocks_int4": 0.6, "dynamic_int8_tensor": 0.8, "static_int8_tensor": 0.8, "static_int8_percentile": 0.8}
    assert cosine(outputs(variant), outputs(case.standard)) > coarse.get(precision, 0.9)
    assert not np.array_equal(outputs(variant), outputs(case.standard))


@pytest.mark.parametrize(
    ("precision", "kernel"),
    [
        ("weight_int8", "MatMul"), ("dynamic_int8", "DynamicQuantizeMatMul"), ("static_int8", "MatMulIntegerToFloat"),
        ("blocks_int8", "MatMulNBits"), ("blocks_int4", "MatMulNBits"),
    ],
)  # fmt: skip
def test_every_scheme_gets_the_kernel_that_it_is_for(case, tmp_path, precision, kernel):
    variant = built(Plan(precision, from_standard=True), case, tmp_path / "plan.onnx")
    executed = onnx.load(RUNTIME.executed_graph(variant, 1, tmp_path))
    kinds = Counter(node.op_type for node in executed.graph.node)
    assert kinds[kernel] >= 8, kinds
    if precision == "weight_int8":
        codes = {tensor.name for tensor in executed.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
        assert not codes, "the runtime folds the chain into a float constant when it loads"


def test_without_runs_there_are_no_static_scales(case, tmp_path):
    with pytest.raises(UsageError, match="static scales need runs"):
        build(Plan("static_int8"), case, tmp_path / "plan.onnx")


def test_residuals_are_not_rounded_with_the_products(case, tmp_path):
    """The quantizer rounds a tensor for all of its readers; only the products are to read the codes."""
    model = onnx.load(built(Plan("static_int8", from_standard=True), case, tmp_path / "plan.onnx").path)
    makers = {output: node for node in model.graph.node for output in node.output}
    added = [name for node in model.graph.node if node.op_type in {"Add", "LayerNormalization"} for name in node.input]
    assert not [name for name in added if name in makers and makers[name].op_type == "DequantizeLinear"
                and name.split("_Dequantize")[0] not in {t.name for t in model.graph.initializer}
                and makers[makers[name].input[0]].op_type == "QuantizeLinear"]  # fmt: skip


def weights(case: Case) -> list[str]:
    model = read_model(Path(case.standard.path))
    return [placed.layer.name for placed in find_layers(model, model) if placed.layer.kind == "product"]


def test_layers_have_schemes_of_their_own(case, tmp_path):
    first, second, third, fourth, fifth, *_ = weights(case)
    chosen = {first: "static_int8", second: "blocks_int4", third: "float32", fourth: "weight_int8"}
    plan = Plan(from_standard=True).with_precision("dynamic_int8", chosen)
    variant = built(plan, case, tmp_path / "plan.onnx")
    kinds = Counter(operators(variant))
    assert kinds["MatMulInteger"] == len(weights(case)) - 4
    assert kinds["MatMulNBits"] == 1
    assert kinds["QuantizeLinear"] == 1
    held = {tensor.name: tensor.data_type for tensor in onnx.load(variant.path).graph.initializer}
    assert held[third] == onnx.TensorProto.FLOAT
    assert fourth not in held
    assert cosine(outputs(variant), outputs(case.standard)) > 0.9
    assert plan.with_precision("dynamic_int8", {fifth: "dynamic_int8"}).layers == {}, "as all the others"


def test_layers_keep_their_schemes_in_the_standards_own_graph(case, tmp_path):
    """The variant has other names and quantized weights; a plan's names are the standard's."""
    name = weights(case)[1]
    plan = Plan().with_precision("dynamic_int8", {name: "float32"})
    for candidate in (plan, replace(plan, from_standard=True)):
        model = onnx.load(built(candidate, case, tmp_path / "plan.onnx").path)
        floats = [t for t in model.graph.initializer if len(t.dims) == 2 and t.data_type == onnx.TensorProto.FLOAT]
        original = next(t for t in onnx.load(case.standard.path).graph.initializer if t.name == name)
        assert original.raw_data in {tensor.raw_data for tensor in floats}


@pytest.mark.parametrize(("one", "kernel"), [("float32", "Attention"), ("dynamic_int8", "QAttention")])
def test_a_packed_layer_is_as_careful_as_its_parts(case, tmp_path, one, kernel):
    """Query, key and value are packed by the fusion: one float part keeps all of them float."""
    onnx.save(flash(segmented_qkv=True), case.variant.path)
    separate = Plan("float32")
    model = read_model(Path(built(separate, case, tmp_path / "plan.onnx").path))
    names = [
        p.layer.name for p in find_layers(model, read_model(Path(case.standard.path))) if p.layer.shape == (64, 64)
    ]
    plan = Plan(remedies=("restore_scale", "remove_copies", "fuse_attention"))
    fused = built(plan.with_precision("dynamic_int8", {names[0]: one}), case, tmp_path / "fused.onnx")
    kinds = Counter(operators(fused))
    assert kinds["QAttention"] + kinds["Attention"] == LAYERS
    assert kinds[kernel] >= 1


def test_attention_without_a_bias_is_quantized_too(case, tmp_path):
    model = onnx.load(case.standard.path)
    for tensor in model.graph.initializer:
        if "attention.self" in tensor.name and tensor.name.endswith("bias"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(tuple(tensor.dims), np.float32), tensor.name))
    onnx.save(model, case.standard.path)
    fused = Plan(remedies=("fuse_attention",), from_standard=True)
    plain = built(fused.with_precision("float32"), case, tmp_path / "float.onnx")
    graph = onnx.load(plain.path)
    for node in graph.graph.node:
        if node.op_type == "Attention":
            node.input[2] = ""
    onnx.save(graph, case.standard.path)
    variant = built(Plan("dynamic_int8", from_standard=True), case, tmp_path / "plan.onnx")
    assert operators(variant).count("QAttention") == LAYERS
    assert cosine(outputs(variant), outputs(plain)) > 0.98


def quantized(case: Case, form: str) -> onnx.ModelProto:
    model, feed = onnx.load(case.standard.path), tiny_feed()
    match form:
        case "qdq":
            return statically_quantized(model, feed)
        case "qoperator":
            return statically_quantized(model, feed, form=QuantFormat.QOperator)
        case "dynamic":
            return dynamic(model, op_types=["MatMul", "Gather"], per_channel=True)
        case "fp16":
            return convert_float_to_float16(model, keep_io_types=True)
    config = DefaultWeightOnlyQuantConfig(block_size=32, bits=int(form[-1]), is_symmetric=form.startswith("even"))
    quantizer = MatMulNBitsQuantizer(model, algo_config=config)
    quantizer.process()
    return quantizer.model.model


@pytest.mark.parametrize(
    "form", ["qdq", "qoperator", "dynamic", "fp16", "even blocks of 4", "blocks of 4", "blocks of 8"]
)
def test_what_is_quantized_already_becomes_float_again(case, tmp_path, form):
    made = quantized(case, form)
    onnx.save(made, case.variant.path)
    repaired = build(Plan("float32"), case, tmp_path / "plan.onnx")
    left = [kind for kind in operators(repaired) if "Quantize" in kind or "Integer" in kind or kind.startswith("Q")]
    assert not left
    assert cosine(outputs(repaired), outputs(case.standard)) > 0.999, "biases are what their codes stand for"
    before = cosine(outputs(case.variant), outputs(case.standard))
    assert before < cosine(outputs(repaired), outputs(case.standard)) or form == "fp16"
    alone = Case(standard=case.variant, variant=case.variant)
    dequantized = build(Plan("float32"), alone, tmp_path / "alone.onnx")
    assert cosine(outputs(dequantized), outputs(case.standard)) >= min(before, 0.9999) - 0.002


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("alone", [False, True])
def test_a_convolutional_net_gets_its_relus_back(tmp_path, form, alone):
    """The quantizer leaves them out where no code stands for a negative number."""
    onnx.save(tiny_cnn(), tmp_path / "standard.onnx")
    onnx.save(statically_quantized(tiny_cnn(), cnn_feed(4), form=form), tmp_path / "variant.onnx")
    variant = Variant("onnxruntime", str(tmp_path / "variant.onnx"))
    assert operators(variant).count("Relu") < 4
    standard = variant if alone else Variant("onnxruntime", str(tmp_path / "standard.onnx"))
    repaired = build(Plan("float32"), Case(standard=standard, variant=variant), tmp_path / "plan.onnx")
    assert operators(repaired).count("Relu") == 4
    ours, theirs = (
        ort.InferenceSession(str(p)).run(None, cnn_feed(2, 9))[0] for p in (repaired.path, tmp_path / "standard.onnx")
    )
    assert cosine(ours, theirs) > 0.995


@pytest.mark.parametrize("precision", ["static_int8", "static_int8_tensor", "dynamic_int8", "weight_int8"])
def test_convolutions_have_schemes_too(tmp_path, precision):
    onnx.save(tiny_cnn(), tmp_path / "standard.onnx")
    standard = Variant("onnxruntime", str(tmp_path / "standard.onnx"))
    feeds = [cnn_feed(2, seed) for seed in range(4)]
    variant = build(Plan(precision), Case(standard=standard, variant=standard), tmp_path / "plan.onnx", feeds=feeds)
    kinds = {node.op_type for node in onnx.load(RUNTIME.executed_graph(variant, 1, tmp_path)).graph.node}
    wanted = {"static": "QLinearConv", "dynamic": "ConvInteger"}.get(precision.split("_")[0])
    assert wanted in kinds if wanted else "ConvInteger" not in kinds
    ours, theirs = (ort.InferenceSession(v.path).run(None, cnn_feed(2, 9))[0] for v in (variant, standard))
    assert cosine(ours, theirs) > 0.99


def test_one_convolution_can_stay_float_among_static_ones(tmp_path):
    """In the file. Between codes the runtime quantizes its weight by itself when it loads the model."""
    onnx.save(tiny_cnn(), tmp_path / "standard.onnx")
    standard = Variant("onnxruntime", str(tmp_path / "standard.onnx"))
    plan = Plan().with_precision("static_int8", {"depthwise.weight": "float32"})
    variant = build(plan, Case(standard=standard, variant=standard), tmp_path / "plan.onnx", feeds=[cnn_feed(2)])
    graph = onnx.load(variant.path).graph
    held = {tensor.name for tensor in graph.initializer}
    read = [node.input[1] for node in graph.node if node.op_type == "Conv"]
    assert [name in held for name in read] == [False, False, True, False]


def test_an_old_opset_is_lifted_for_scales_by_column(tmp_path):
    model = tiny_cnn()
    old = onnx.ModelProto()
    old.CopyFrom(model)
    old.opset_import[0].version = 11
    onnx.save(old, tmp_path / "standard.onnx")
    standard = Variant("onnxruntime", str(tmp_path / "standard.onnx"))
    variant = build(
        Plan("static_int8"), Case(standard=standard, variant=standard), tmp_path / "p.onnx", feeds=[cnn_feed()]
    )
    assert onnx.load(variant.path).opset_import[0].version >= 13
    onnx.checker.check_model(variant.path, full_check=True)
