import onnx
import onnx_ir as ir

from planting import cnn_feed, editable, tiny_bert, tiny_cnn
from rewriting import assert_keeps, assert_untouched, rewritten
from unlag.rewrites.unlist_initializers import unlist_initializers
from zoo.initializers_as_inputs import infect, twin


def listed() -> onnx.ModelProto:
    model = editable(tiny_cnn())
    infect(model)
    return ir.to_proto(model)


def test_all_weights_become_constants():
    before = listed()
    after, changed = rewritten(before, unlist_initializers)
    assert changed == len(before.graph.initializer)
    assert [value.name for value in after.graph.input] == ["image"]
    assert_keeps(before, after, **cnn_feed())


def test_what_a_caller_feeds_stays():
    after, changed = rewritten(listed(), lambda model: unlist_initializers(model, frozenset({"head.bias"})))
    assert changed == len(after.graph.initializer) - 1
    assert [value.name for value in after.graph.input] == ["image", "head.bias"]


def test_an_old_file_must_list_them():
    assert_untouched(twin().variant, unlist_initializers)


def test_a_clean_model_is_left_alone():
    assert_untouched(tiny_bert(), unlist_initializers)
