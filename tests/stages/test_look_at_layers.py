"""Single layers, measured for real: kernels at the shapes that the workload has, codes on what layers really read."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from planting import LAYERS, cnn_feed, tiny_bert, tiny_cnn, tiny_feed
from unlag.errors import UsageError
from unlag.measure.bench import Bench
from unlag.measure.host import read_host
from unlag.measure.progress import silent
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Workload
from unlag.stages.fixed import Rejected
from unlag.stages.journal import Journal
from unlag.stages.layer_bench import LayerBench, build_layers, open_layers, with_shapes
from unlag.stages.layer_errors import layer_errors, layer_gains
from unlag.stages.layer_facts import LayerFacts
from unlag.stages.layer_times import time_layers
from unlag.stages.look_at_layers import LayersOf
from unlag.stages.plan import Plan


def bench_of(path, model: onnx.ModelProto, feeds) -> tuple[Bench, Variant]:
    onnx.save(model, path)
    variant = Variant("onnxruntime", str(path))
    workload = Workload("test", "2x8", feeds[0], tuple(feeds[:1]), calibration=tuple(feeds))
    case = Case(standard=variant, variant=variant)
    return Bench(case, read_host(), workload, cores=(0,), threads=1, progress=silent), variant


@pytest.fixture
def bert(tmp_path) -> tuple[Bench, LayerBench]:
    bench, variant = bench_of(tmp_path / "bert.onnx", tiny_bert(), [tiny_feed(2, 8, seed) for seed in range(4)])
    return bench, with_shapes(bench, open_layers(bench, variant), tmp_path)


def test_layers_are_timed_at_the_shapes_that_they_have(bert):
    bench, layers = bert
    schemes = ("dynamic_int8", "static_int8", "blocks_int8")
    facts = time_layers(bench, layers, schemes, at_once=2)
    assert facts.failed == ()
    assert set(facts.times_ms) == {"float32", *schemes}
    names = {layer.name for layer in facts.layers}
    assert len(names) == 4 * LAYERS
    assert all(set(times) == names for times in facts.times_ms.values())
    assert all(0 < ms < 1e3 for times in facts.times_ms.values() for ms in times.values())
    assert set(facts.places.values()) == {"16x64·64x192", "16x64·64x64", "16x64·64x128", "16x128·128x64"}
    alike = [name for name, place in facts.places.items() if place == "16x64·64x64"]
    assert len({facts.times_ms["float32"][name] for name in alike}) == 1, "layers alike are timed once"


def test_larger_products_take_longer(tmp_path):
    rng = np.random.default_rng(0)
    nodes = [onnx.helper.make_node("MatMul", ["x", name], [f"{name}.y"]) for name in ("small", "large")]
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((256, width)).astype(np.float32), name)
        for name, width in (("small", 32), ("large", 2048))
    ]
    info = onnx.helper.make_tensor_value_info
    outputs = [info(f"{name}.y", 1, ["n", width]) for name, width in (("small", 32), ("large", 2048))]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, ["n", 256])], outputs, weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    feeds = [{"x": rng.standard_normal((128, 256)).astype(np.float32)}]
    bench, variant = bench_of(tmp_path / "two.onnx", model, feeds)
    facts = time_layers(bench, with_shapes(bench, open_layers(bench, variant), tmp_path), ("dynamic_int8",), 2)
    for times in facts.times_ms.values():
        assert times["large"] > 4 * times["small"]


def test_a_scheme_that_no_layer_has_an_operator_for_is_not_timed(tmp_path):
    bench, variant = bench_of(tmp_path / "cnn.onnx", tiny_cnn(), [cnn_feed()])
    layers = with_shapes(bench, open_layers(bench, variant), tmp_path)
    convolutions = [placed.layer.name for placed in layers.layers if placed.layer.kind == "convolution"]
    feeds = [{name: np.zeros(shape, np.float32) for name, shape in layers.shapes.items()}]
    assert build_layers(layers, convolutions, "blocks_int4", feeds, tmp_path / "none.onnx") is None
    facts = time_layers(bench, layers, ("static_int8",), at_once=2)
    assert facts.places["second.weight"] == "1x16x24x24·32x16x3x3"
    assert set(facts.times_ms["static_int8"]) == {"first.weight", "second.weight", "depthwise.weight", "third.weight",
                                                  "head.weight"}  # fmt: skip


def test_errors_are_those_of_the_codes(bert):
    bench, layers = bert
    facts = layer_errors(bench, layers, ("weight_int8", "dynamic_int8", "blocks_int4"), LayerFacts((), {}, {}))
    assert all(len(errors) == 4 * LAYERS for errors in facts.errors.values())
    assert all(0 < error < 0.5 for errors in facts.errors.values() for error in errors.values())
    assert facts.error("weight_int8") < facts.error("dynamic_int8") < facts.error("blocks_int4")
    plain = layer_errors(bench, layers, ("float32",), LayerFacts((), {}, {})).errors["float32"]
    assert max(plain.values()) < 1e-6, "a scheme that changes nothing loses nothing"


def test_a_scheme_that_can_not_be_built_is_said(bert, monkeypatch):
    bench, layers = bert

    def refuses(*_: object, **__: object) -> None:
        raise UsageError("no such kernel")

    monkeypatch.setattr("unlag.stages.quantize.quantize_dynamic", refuses)
    facts = layer_errors(bench, layers, ("dynamic_int8", "weight_int8"), LayerFacts((), {}, {}))
    assert facts.failed == (Rejected("dynamic_int8", "no such kernel"),)
    assert set(facts.errors) == {"weight_int8"}
    facts = time_layers(bench, layers, ("dynamic_int8",), at_once=2)
    assert facts.failed == (Rejected("dynamic_int8", "no such kernel"),)
    assert not facts.times_ms, "float32 has nobody to race with"


def test_the_last_layers_errors_arrive_and_a_dead_ones_do_not(tmp_path):
    """One product is multiplied by nearly nothing before it is added to the other."""
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((32, 32)).astype(np.float32), name)
        for name in ("loud", "faint")
    ]
    weights.append(onnx.numpy_helper.from_array(np.float32(1e-3), "little"))
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "loud"], ["a"]),
        onnx.helper.make_node("MatMul", ["x", "faint"], ["b"]),
        onnx.helper.make_node("Mul", ["b", "little"], ["c"]),
        onnx.helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, ["n", 32])], [info("y", 1, ["n", 32])], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    feeds = [{"x": rng.standard_normal((16, 32)).astype(np.float32)} for _ in range(2)]
    bench, variant = bench_of(tmp_path / "two.onnx", model, feeds)
    gains = layer_gains(bench, open_layers(bench, variant))
    assert gains["loud"] == pytest.approx(1.0, rel=0.2)
    assert gains["faint"] < 0.01


def test_what_was_measured_is_read_from_the_journal_in_a_second_run(bert, tmp_path, monkeypatch):
    bench, layers = bert
    monkeypatch.setattr("unlag.stages.look_at_layers.FIRST", ("dynamic_int8",))
    journal = Journal(tmp_path / "journal")
    built: list[Plan] = []

    def make(plan: Plan) -> Variant:
        built.append(plan)
        return layers.variant

    shop = SimpleNamespace(bench=bench, journal=journal, at_once=3, make=make)
    first = LayersOf(shop, Plan("dynamic_int8"))
    facts = first.times()
    facts, gains = first.errors(facts, ["dynamic_int8"]), first.gains()
    assert {plan.precision for plan in built} == {"float32"}
    built.clear()
    again = LayersOf(shop, Plan("dynamic_int8"))
    assert again.errors(again.times(), ["dynamic_int8"]) == facts
    assert again.gains() == gains
    assert not built


def test_a_model_that_can_not_be_run_has_no_layers_to_look_at(bert):
    bench, _layers = bert
    broken = Variant("onnxruntime", str(bench.case.standard.path), {"provider": "cuda"})
    shop = SimpleNamespace(bench=bench, journal=Journal(), at_once=3, make=lambda _plan: broken)
    assert LayersOf(shop, Plan()).times() == LayerFacts((), {}, {})
