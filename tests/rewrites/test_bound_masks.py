from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from planting import LAYERS, editable, tiny_bert, tiny_feed
from rewriting import outputs, relative_error, rewritten
from unlag.model.graph import add_constant, constant_array, insert_node, sweep
from unlag.rewrites.bound_masks import HIDDEN, bound_masks
from unlag.rewrites.fix_dimensions import fix_dimensions

BATCH, SEQUENCE = 2, 8
FEEDS = [tiny_feed(BATCH, SEQUENCE, seed) for seed in range(3)]


def changed_bert(edit=lambda _model: None) -> onnx.ModelProto:
    model = editable(tiny_bert())
    fix_dimensions(model, {name: array.shape for name, array in FEEDS[0].items()})
    edit(model)
    sweep(model)
    return ir.to_proto(model)


def constant(model: ir.Model, value, name: str) -> ir.Value:
    return add_constant(model.graph, np.array(value), name)


def masks(model: ir.Model) -> list[ir.Node]:
    """The Add in front of each Softmax."""
    return [node.inputs[0].producer() for node in model.graph if node.op_type == "Softmax"]


def by_choice(model: ir.Model) -> None:
    """Scores of padding replaced by −∞ instead of a sum, once for every head."""
    adds = masks(model)
    first = next(iter(model.graph))
    mask = model.graph.inputs[1]
    hidden = insert_node(first, "Equal", [mask, constant(model, 0, "nothing")], name="hidden")
    hidden = insert_node(first, "Unsqueeze", [hidden, constant(model, [1, 2], "axes")], name="hidden.axes")
    shape = constant(model, [BATCH, 4, SEQUENCE, SEQUENCE], "expanded")
    hidden = insert_node(first, "Expand", [hidden, shape], name="hidden.expanded")
    lowest = constant(model, np.float32(-np.inf), "lowest")
    for add in adds:
        chosen = insert_node(add, "Where", [hidden, lowest, add.inputs[0]], name=f"{add.name}.chosen")
        add.outputs[0].replace_all_uses_with(chosen)


def causal(model: ir.Model) -> None:
    later = np.triu(np.full((SEQUENCE, SEQUENCE), np.finfo(np.float32).min, np.float32), 1)
    for add in masks(model):
        more = insert_node(add, "Add", [add.inputs[0], constant(model, later, "later")], name=f"{add.name}.causal")
        add.replace_input_with(0, more)


def between_softmax_and_scores(model: onnx.ModelProto) -> set[str]:
    """Operators that the scores go through, and that the mask is made by."""
    found: set[str] = set()
    draft = ir.from_proto(model)
    waiting = [node.inputs[0] for node in draft.graph if node.op_type == "Softmax"]
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node.op_type not in {"MatMul", "Reshape"}:
            found.add(node.op_type)
            waiting += [value for value in node.inputs if value is not None]
    return found


@pytest.mark.parametrize("edit", [lambda _model: None, by_choice, causal])
def test_masks_become_sums_of_finite_numbers(edit):
    before = changed_bert(edit)
    after, changed = rewritten(before, bound_masks)

    assert changed == LAYERS
    assert between_softmax_and_scores(after) <= {"Add", "Mul", "Sub", "Cast", "Unsqueeze"}
    floats = [constant_array(v) for v in ir.from_proto(after).graph.initializers.values()]
    assert min(array.min() for array in floats if array.dtype == np.float32) >= HIDDEN
    for feed in FEEDS:
        assert relative_error(outputs(after, feed), outputs(before, feed)) < 2e-5


def test_padding_still_counts():
    before = changed_bert()
    after, _ = rewritten(before, bound_masks)
    unmasked = FEEDS[0] | {"attention_mask": np.ones((BATCH, SEQUENCE), np.int64)}
    assert relative_error(outputs(after, FEEDS[0]), outputs(before, unmasked)) > 1e-3


def test_what_comes_later_waits_for_a_fixed_length():
    model = editable(tiny_bert())
    causal(model)
    assert bound_masks(model) == 0


def test_a_weak_mask_would_be_seen():
    """The control: with a mask that hides little, outputs differ."""
    before = changed_bert()
    draft = ir.from_proto(before)
    bound_masks(draft, hidden=-1.0)
    assert relative_error(outputs(ir.to_proto(draft), FEEDS[0]), outputs(before, FEEDS[0])) > 1e-3
