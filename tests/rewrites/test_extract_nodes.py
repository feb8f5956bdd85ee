"""Some nodes of a model on their own, and noise on tensors inside of one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from planting import cnn_feed, editable, tiny_bert, tiny_cnn, tiny_feed
from rewriting import TIGHT, outputs, relative_error
from unlag.rewrites.expose_tensors import expose_tensors
from unlag.rewrites.extract_nodes import computed_inputs, extract_nodes, input_name
from unlag.rewrites.own_inputs import own_inputs
from unlag.rewrites.perturb_values import AMOUNTS, perturb_values
from unlag.rewrites.stored_weights import constant_type


def weighted(model: ir.Model, *kinds: str) -> list[ir.Node]:
    return [n for n in model.graph if n.op_type in kinds and constant_type(n.inputs[1]) is not None]


@pytest.mark.parametrize(
    ("make", "feed", "kinds"), [(tiny_bert, tiny_feed(), ("MatMul",)), (tiny_cnn, cnn_feed(), ("Conv", "Gemm"))]
)
def test_nodes_on_their_own_compute_what_they_do_inside(make, feed, kinds):
    exposed = editable(make())
    names = expose_tensors(exposed)
    inner = {
        **feed,
        **dict(zip([v.name for v in exposed.graph.outputs], outputs(ir.to_proto(exposed), feed), strict=True)),
    }
    assert set(names) <= set(inner)
    model = editable(make())
    nodes = weighted(model, *kinds)
    reads = {input_name(v): inner[v.name] for node in nodes for v in computed_inputs(node)}
    results = [inner[node.outputs[0].name] for node in nodes]
    extract_nodes(model, nodes, {name: array.shape for name, array in reads.items()})
    made = ir.to_proto(model)
    assert [value.name for value in made.graph.output] == [node.outputs[0].name for node in nodes]
    assert len(made.graph.node) == len(nodes)
    assert relative_error(outputs(made, reads), results) < TIGHT


def test_a_node_that_reads_anothers_result_has_an_input_for_it():
    model = editable(tiny_cnn())
    nodes = [node for node in model.graph if node.op_type in {"Conv", "Relu"}][:2]
    extract_nodes(model, nodes, {"image.read": (1, 3, 24, 24), "first.out.read": (1, 16, 24, 24)})
    assert [value.name for value in model.graph.inputs] == ["image.read", "first.out.read"]
    assert [value.name for value in model.graph.outputs] == ["first.out", "first.relu"]


def test_chosen_readers_read_a_tensor_of_their_own():
    before, model = tiny_bert(), editable(tiny_bert())
    nodes = weighted(model, "MatMul")
    count = own_inputs(model, set(nodes))
    assert count == len({node.inputs[0].producer().inputs[0] for node in nodes})
    assert all({use.node for use in node.inputs[0].uses()} <= set(nodes) for node in nodes)
    assert relative_error(outputs(ir.to_proto(model), tiny_feed()), outputs(before, tiny_feed())) < TIGHT


def test_noise_is_as_large_as_is_said_and_where_it_is_said():
    model = editable(tiny_bert())
    values = [node.outputs[0] for node in weighted(model, "MatMul")]
    names = [value.name for value in values]
    perturb_values(model, values)
    noisy = [f"unlag.noise.{number}.noisy.out" for number in range(len(values))]
    for value in [*values, *(v for node in model.graph for v in node.outputs if v.name in noisy)]:
        model.graph.outputs.append(value)
    made = ir.to_proto(model)

    def run(amounts: np.ndarray) -> dict[str, np.ndarray]:
        held = outputs(made, {**tiny_feed(), AMOUNTS: amounts.astype(np.float32)})
        return dict(zip([value.name for value in made.graph.output], held, strict=True))

    still = run(np.zeros(len(values)))
    assert relative_error([still[name] for name in noisy], [still[name] for name in names]) < TIGHT
    amounts = np.zeros(len(values))
    amounts[2] = 0.05
    moved = run(amounts)
    change = moved[noisy[2]] - moved[names[2]]
    assert np.sqrt(np.mean(change**2)) == pytest.approx(0.05 * np.sqrt(np.mean(moved[names[2]] ** 2)), rel=0.1)
    assert np.array_equal(moved[noisy[1]], moved[names[1]])
    first = made.graph.output[0].name
    assert relative_error([moved[first]], [still[first]]) > 1e-4
