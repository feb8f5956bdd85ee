from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from planting import HEADS, HIDDEN, editable, flash, tiny_bert, tiny_feed
from rewriting import assert_keeps, assert_untouched, outputs, relative_error, rewritten
from unlag.model.facts import facts_of
from unlag.model.graph import add_constant, insert_node, sweep
from unlag.rewrites.attention_pattern import attention_blocks
from unlag.rewrites.fuse_attention import fuse_attention
from unlag.rewrites.restore_scale import restore_scale_from

SCALE = (HIDDEN / HEADS) ** -0.5


def standard() -> ir.Model:
    return editable(tiny_bert())


def scaled(name: str, place: str) -> ir.Model:
    """The model without scale, with a factor put in a place of its own."""
    model = editable(flash(drop_scale=True))
    for node in [n for n in model.graph if str(n.name).endswith("self.scores")]:
        if place == "query":
            factor = add_constant(model.graph, np.array(SCALE, np.float32), f"{name}.factor")
            node.replace_input_with(0, insert_node(node, "Mul", [factor, node.inputs[0]], name=f"{node.name}.{name}"))
        elif place == "computed":
            size = add_constant(model.graph, np.array([HIDDEN // HEADS], np.int64), f"{name}.size")
            floats = insert_node(node, "Cast", [size], name=f"{node.name}.float", attributes={"to": 1})
            root = insert_node(node, "Sqrt", [floats], name=f"{node.name}.root")
            node.replace_input_with(1, insert_node(node, "Div", [node.inputs[1], root], name=f"{node.name}.{name}"))
        elif place == "shape":
            shape = insert_node(node, "Shape", [node.inputs[0]], name=f"{node.name}.shape", attributes={"start": -1})
            floats = insert_node(node, "Cast", [shape], name=f"{node.name}.float", attributes={"to": 1})
            root = insert_node(node, "Sqrt", [floats], name=f"{node.name}.root")
            node.replace_input_with(0, insert_node(node, "Div", [node.inputs[0], root], name=f"{node.name}.{name}"))
    sweep(model)
    return model


def test_a_lost_scale_comes_back():
    before = flash(drop_scale=True)
    after, changed = rewritten(before, lambda model: restore_scale_from(model, standard()))
    assert changed == 2
    assert_keeps(tiny_bert(), after)
    feed = tiny_feed()
    assert relative_error(outputs(before, feed), outputs(tiny_bert(), feed)) > 1e-2, "the plant must matter"


def test_a_doubled_scale_is_halved():
    model = editable(tiny_bert())
    for node in [n for n in model.graph if str(n.name).endswith("self.scores")]:
        factor = add_constant(model.graph, np.array(SCALE, np.float32), "again")
        node.replace_input_with(0, insert_node(node, "Mul", [node.inputs[0], factor], name=f"{node.name}.again"))
    after, changed = rewritten(ir.to_proto(model), lambda m: restore_scale_from(m, standard()))
    assert changed == 2
    assert_keeps(tiny_bert(), after)


@pytest.mark.parametrize("place", ["query", "computed", "shape"])
def test_the_same_scale_in_another_place_is_not_missing(place):
    model = scaled("other", place)
    scales = [block.scale for block in attention_blocks(facts_of(model))]
    assert scales == pytest.approx([SCALE, SCALE], rel=1e-6)
    assert_untouched(ir.to_proto(model), lambda m: restore_scale_from(m, standard()))


def test_the_standard_may_be_fused():
    fused = standard()
    assert fuse_attention(fused) == 2
    after, changed = rewritten(flash(drop_scale=True), lambda model: restore_scale_from(model, fused))
    assert changed == 2
    assert_keeps(tiny_bert(), after)


def test_half_scores_get_a_half_factor():
    _after, changed = rewritten(
        flash(drop_scale=True, fp16_activations=True), lambda m: restore_scale_from(m, standard())
    )
    assert changed == 2


def test_the_standard_itself_is_left_alone():
    assert_untouched(tiny_bert(), lambda model: restore_scale_from(model, standard()))
