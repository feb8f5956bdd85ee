from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import cnn_feed, tiny_bert, tiny_cnn, tiny_feed
from rewriting import assert_keeps, assert_untouched, parsed, rewritten
from unlag.rewrites.fix_dimensions import fix_dimensions

SHAPES = {name: array.shape for name, array in tiny_feed(2, 8).items()}


def dimensions(values) -> dict[str, list[int | str]]:
    return {v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in values}


def test_inputs_take_the_shapes_that_were_seen():
    before = tiny_bert()
    after, changed = rewritten(before, lambda model: fix_dimensions(model, SHAPES))
    assert changed == 3
    assert dimensions(after.graph.input) == {name: [2, 8] for name in SHAPES}
    assert dimensions(after.graph.output) == dimensions(before.graph.output)
    assert_keeps(before, after, **tiny_feed(2, 8))


def test_other_shapes_are_refused_then():
    after, _changed = rewritten(tiny_cnn(), lambda model: fix_dimensions(model, {"image": (1, 3, 24, 24)}))
    assert_keeps(tiny_cnn(), after, **cnn_feed(1))
    with pytest.raises(Exception, match="Got: 2 Expected: 1"):
        assert_keeps(tiny_cnn(), after, **cnn_feed(2))


@pytest.mark.parametrize("shape", [(2, 3, 24), (1, 3, 32, 32), ()])
def test_a_shape_that_contradicts_the_file_is_not_taken(shape):
    assert_untouched(tiny_cnn(), lambda model: fix_dimensions(model, {"image": shape}))


def test_nothing_is_done_without_shapes_or_without_symbols():
    assert_untouched(tiny_bert(), lambda model: fix_dimensions(model, {}))
    fixed = parsed("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
    assert_untouched(fixed, lambda model: fix_dimensions(model, {"x": (2, 3)}))


def test_initializers_that_are_listed_as_inputs_are_left_alone():
    model = parsed("g (float[n] x, float[n] w) => (float[n] y) { y = Add(x, w) }", w=np.ones(3, np.float32))
    onnx.checker.check_model(model)
    after, changed = rewritten(model, lambda draft: fix_dimensions(draft, {"x": (3,), "w": (3,)}))
    assert changed == 1
    assert dimensions(after.graph.input) == {"x": [3], "w": ["n"]}
