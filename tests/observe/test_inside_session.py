"""What the runtime tells of an opened model: passes that acted, and how wide the graph is that runs."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import psutil
import pytest
from onnx import helper

from measure.scripted import fake
from planting import tiny_bert, tiny_cnn
from unlag.errors import ContenderError, Missing
from unlag.measure.bench import open_bench
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.observe.inside_session import InsideSession, graph_width, look_inside, passes_that_acted

LOG = """
2026-01-01 [I:onnxruntime:, graph_transformer.cc:15 Apply] GraphTransformer ConstantSharing modified: 1 with status: OK
[I:onnxruntime:, graph_transformer.cc:15 Apply] GraphTransformer GeluFusionL2 modified: 0 with status: OK
GraphTransformer Level1_RuleBasedTransformer modified: 1 with status: OK
GraphTransformer ConstantSharing modified: 1 with status: OK
GraphTransformer SkipLayerNormFusion modified: 10 with status: OK
"""


def look(folder, model: onnx.ModelProto, **options: str) -> InsideSession:
    onnx.save(model, folder / "model.onnx")
    variant = Variant("onnxruntime", str(folder / "model.onnx"), options)
    shape = Shape(2, 8)
    return look_inside(open_bench(Case(standard=variant, variant=variant, shapes=(shape,)), shape), variant)


def test_only_passes_that_changed_something_are_taken_from_the_log():
    assert passes_that_acted(LOG) == ("ConstantSharing", "Level1_RuleBasedTransformer")
    assert passes_that_acted("") == ()


def test_a_pass_that_is_switched_off_does_not_act(tmp_path):
    """This pins the runtime's wording: another one would tell of no pass at all."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    inside = look(tmp_path, tiny_bert())
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
    acted = [name for name in inside.passes if name.startswith("BiasGelu")]
    assert acted
    assert not set(acted) & set(look(tmp_path, tiny_bert(), disable="+".join(acted)).passes)


def test_without_optimization_no_pass_acts(tmp_path):
    fusions = [name for name in look(tmp_path, tiny_bert(), optimization="off").passes if "Fusion" in name]
    assert not fusions


def test_convolutions_are_put_into_blocks(tmp_path):
    names = set(look(tmp_path, tiny_cnn()).passes)
    if "NchwcTransformer" not in names:
        pytest.skip("this CPU has no blocked kernels")
    assert "NchwcTransformer" not in look(tmp_path, tiny_cnn(), optimization="extended").passes


def test_another_runtime_does_not_tell(tmp_path):
    variant = fake(tmp_path)
    shape = Shape(1, 4)
    inside = look_inside(open_bench(Case(standard=variant, variant=variant, shapes=(shape,)), shape), variant)
    assert isinstance(inside.passes, Missing)
    assert isinstance(inside.width, Missing)


def test_a_model_that_does_not_open_leaves_no_process(tmp_path):
    onnx.save(tiny_bert(), tmp_path / "model.onnx")
    good = Variant("onnxruntime", str(tmp_path / "model.onnx"))
    bench = open_bench(Case(standard=good, variant=good, shapes=(Shape(2, 8),)), Shape(2, 8))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(ContenderError):
        look_inside(bench, Variant("onnxruntime", str(tmp_path / "missing.onnx")))
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before


def width(*edges: str, heavy: frozenset[str] = frozenset({"MatMul"})) -> int:
    """Of a graph whose nodes are written ``Type:inputs>output``."""
    nodes = []
    for edge in edges:
        op_type, rest = edge.split(":")
        given, made = rest.split(">")
        nodes.append(helper.make_node(op_type, given.split("+"), [made]))
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["a", "b"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "wide", values[:1], values[1:])
    return graph_width(ir.from_proto(helper.make_model(graph)).graph, heavy)


@pytest.mark.parametrize(
    ("edges", "wide"),
    [
        (("Relu:x>y",), 0),
        (("MatMul:x+x>a", "MatMul:a+x>y"), 1),
        (("MatMul:x+x>q", "MatMul:x+x>k", "MatMul:x+x>v", "MatMul:q+k>s", "MatMul:s+v>y"), 3),
        (("MatMul:x+x>a", "Relu:a>b", "MatMul:b+b>c", "MatMul:b+a>d", "Add:c+d>y"), 2),
        (("Relu:x>a", "Relu:x>b", "Relu:x>c", "MatMul:a+b>y"), 1),
    ],
)
def test_only_heavy_operators_that_do_not_need_each_other_make_a_graph_wide(edges, wide):
    assert width(*edges) == wide
