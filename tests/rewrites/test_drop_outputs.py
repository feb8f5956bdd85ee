import numpy as np
import onnx_ir as ir

from planting import editable, tiny_bert, tiny_feed
from rewriting import assert_untouched, kinds, outputs, parsed
from unlag.rewrites.drop_outputs import drop_outputs
from zoo.extra_outputs import plant

WANTED = [value.name for value in tiny_bert().graph.output]


def test_only_the_wanted_outputs_are_left():
    before = plant().variant
    draft = editable(before)
    assert drop_outputs(draft, WANTED) == len(before.graph.output) - len(WANTED) > 0
    assert drop_outputs(draft, WANTED) == 0
    after = ir.to_proto(draft)
    assert [value.name for value in after.graph.output] == WANTED
    wanted, had = outputs(after, tiny_feed()), outputs(before, tiny_feed())
    assert all(np.array_equal(a, b) for a, b in zip(wanted, had, strict=False))


def test_what_only_the_dropped_outputs_need_goes_too():
    draft = editable(parsed("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) a = Neg(x) z = Exp(a) }"))
    assert drop_outputs(draft, ["y"]) == 1
    assert kinds(ir.to_proto(draft)) == {"Relu": 1}


def test_other_names_can_not_be_told_apart():
    assert_untouched(plant().variant, lambda model: drop_outputs(model, ["something"]))


def test_nothing_extra_is_left_alone():
    assert_untouched(tiny_bert(), lambda model: drop_outputs(model, WANTED))
