from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import quantize_dynamic

from planting import HEADS, HIDDEN, LAYERS, editable, flash, tiny_bert, tiny_feed
from rewriting import TIGHT, assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.model.graph import add_constant, insert_node, sweep
from unlag.rewrites.fold_dequantize import fold_dequantize
from unlag.rewrites.fuse_attention import fuse_attention
from zoo.redundant_softmax_guard import guarded

FEEDS = [tiny_feed(1, 8), tiny_feed(3, 11), tiny_feed(3, 5, seed=1), tiny_feed(1, 1)]


def changed_bert(edit) -> onnx.ModelProto:
    model = editable(tiny_bert())
    edit(model)
    sweep(model)
    return ir.to_proto(model)


def named(model: ir.Model, end: str) -> list[ir.Node]:
    return [node for node in model.graph if str(node.name).endswith(end)]


def constant(model: ir.Model, value, name: str) -> ir.Value:
    return add_constant(model.graph, np.array(value), name)


def shapes_computed(model: ir.Model) -> None:
    """Head shapes put together from the shape of the ids, as exporters write them."""
    minus, heads = constant(model, [HEADS], "heads"), constant(model, [HIDDEN // HEADS], "size")
    for node in named(model, ".reshape"):
        if not str(node.name).endswith("context.reshape"):
            sizes = insert_node(node, "Shape", [model.graph.inputs[0]], name=f"{node.name}.sizes")
            shape = insert_node(
                node, "Concat", [sizes, minus, heads], name=f"{node.name}.shape", attributes={"axis": 0}
            )
            node.replace_input_with(1, shape)


def key_turned_twice(model: ir.Model) -> None:
    """Keys split like queries first, their last axes swapped by a second transpose."""
    for node in named(model, "key.transpose"):
        node.attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 1, 3])
        reader = node.outputs[0].uses()[0].node
        turned = insert_node(
            reader, "Transpose", [node.outputs[0]], name=f"{node.name}.again", attributes={"perm": [0, 1, 3, 2]}
        )
        reader.replace_input_with(1, turned)


def mask_by_where(model: ir.Model) -> None:
    """Scores of padding replaced by the lowest float instead of a sum."""
    false, lowest = constant(model, np.False_, "false"), constant(model, np.finfo(np.float32).min, "lowest")
    axes = constant(model, [1, 2], "where.axes")
    for node in named(model, "self.mask"):
        flag = insert_node(
            node, "Cast", [model.graph.inputs[1]], name=f"{node.name}.flag", attributes={"to": int(ir.DataType.BOOL)}
        )
        wide = insert_node(node, "Unsqueeze", [flag, axes], name=f"{node.name}.wide")
        hidden = insert_node(node, "Equal", [wide, false], name=f"{node.name}.hidden")
        where = insert_node(node, "Where", [hidden, lowest, node.inputs[0]], name=f"{node.name}.where")
        node.outputs[0].replace_all_uses_with(where)


def no_mask(model: ir.Model) -> None:
    for node in named(model, "self.mask"):
        node.outputs[0].replace_all_uses_with(node.inputs[0])


def causal_bias(model: ir.Model) -> None:
    """A mask that depends on the query too: added as it is."""
    table = np.triu(np.full((32, 32), -1e9, np.float32), 1)[None, None]
    full, zero, axes = (
        constant(model, table, "causal"),
        constant(model, [0, 0], "zeros"),
        constant(model, [2, 3], "causal.axes"),
    )
    for node in named(model, "self.mask"):
        length = insert_node(
            node, "Shape", [model.graph.inputs[0]], name=f"{node.name}.length", attributes={"start": 1}
        )
        ends = insert_node(node, "Concat", [length, length], name=f"{node.name}.ends", attributes={"axis": 0})
        cut = insert_node(node, "Slice", [full, zero, ends, axes], name=f"{node.name}.cut")
        node.replace_input_with(1, insert_node(node, "Add", [node.inputs[1], cut], name=f"{node.name}.both"))


def fixed_shapes(model: ir.Model) -> None:
    for value in model.graph.inputs:
        value.shape = ir.Shape([2, 8])
    for node in named(model, ".reshape"):
        rest = [HIDDEN] if str(node.name).endswith("context.reshape") else [HEADS, HIDDEN // HEADS]
        node.replace_input_with(1, constant(model, [2, 8, *rest], f"{node.name}.fixed"))


VARIANTS = {
    "as built": lambda _model: None,
    "computed shapes": shapes_computed,
    "keys turned twice": key_turned_twice,
    "mask by where": mask_by_where,
    "no mask": no_mask,
    "causal": causal_bias,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_spelling_is_fused_with_the_same_outputs(name):
    before = changed_bert(VARIANTS[name])
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    assert kinds(after)["Attention"] == LAYERS
    assert kinds(after)["Softmax"] == 0
    for feed in FEEDS:
        assert relative_error(outputs(after, feed), outputs(before, feed)) <= TIGHT
        assert relative_error(outputs(after, feed, passes=True), outputs(before, feed)) <= TIGHT


@pytest.mark.parametrize("attribute", ["scale", "mask_filter_value", "num_heads"])
def test_another_attribute_would_be_noticed(attribute):
    before = tiny_bert()
    after, _changed = rewritten(before, fuse_attention)
    wrong = {"scale": 0.2, "mask_filter_value": 0.0, "num_heads": 2}[attribute]
    for node in after.graph.node:
        for item in node.attribute:
            if node.op_type == "Attention" and item.name == attribute:
                item.CopyFrom(onnx.helper.make_attribute(attribute, wrong))
    assert max(relative_error(outputs(after, feed), outputs(before, feed)) for feed in FEEDS) > 1e-3


def test_fixed_shapes_are_probed_at_their_own_size():
    before = changed_bert(fixed_shapes)
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    assert relative_error(outputs(after, tiny_feed(2, 8)), outputs(before, tiny_feed(2, 8))) <= TIGHT


def test_separate_projections_are_packed():
    before = flash(segmented_qkv=True)
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    assert kinds(after)["MatMul"] == 3 * LAYERS
    assert_keeps(before, after)


def test_a_block_without_scale_stays_without():
    before = flash(drop_scale=True)
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    assert_keeps(before, after, 1e-4)


def test_a_guard_against_nan_goes_with_the_block():
    before = guarded()
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    assert kinds(after)["IsNaN"] == 0
    assert_keeps(before, after)


def test_quantized_projections_stay_products_of_their_own():
    before = flash(int8_weights=True, segmented_qkv=True)
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    assert kinds(after)["MultiHeadAttention"] == LAYERS
    assert kinds(after)["DequantizeLinear"] == kinds(before)["DequantizeLinear"]
    assert_keeps(before, after)


def test_folded_first_they_are_packed():
    before = flash(int8_weights=True, segmented_qkv=True)
    draft = editable(before)
    assert fold_dequantize(draft)
    assert fuse_attention(draft) == LAYERS
    after = ir.to_proto(draft)
    assert kinds(after)["Attention"] == LAYERS
    assert_keeps(before, after)


def test_half_products_are_fused_around():
    before = flash(fp16_activations=True)
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    assert_keeps(before, after, 1e-3)


def swapped_heads(model: ir.Model) -> None:
    for node in named(model, "value.transpose"):
        node.attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 3, 1])
        reader = node.outputs[0].uses()[0].node
        reader.replace_input_with(
            1,
            insert_node(
                reader, "Transpose", [node.outputs[0]], name=f"{node.name}.odd", attributes={"perm": [0, 1, 3, 2]}
            ),
        )
    for node in named(model, "query.reshape"):
        node.replace_input_with(1, constant(model, [0, 0, HIDDEN // HEADS, HEADS], "odd.shape"))
    for node in named(model, "query.transpose"):
        node.attributes["perm"] = ir.AttrInt64s("perm", [0, 3, 1, 2])


def softmax_over_queries(model: ir.Model) -> None:
    for node in named(model, "self.softmax"):
        node.attributes["axis"] = ir.AttrInt64("axis", 2)


def negative_mask(model: ir.Model) -> None:
    """A bias of −1 on padding: lowered, not hidden."""
    for node in named(model, "mask.bias"):
        node.replace_input_with(1, constant(model, np.float32(-1), "mild"))


def capped_scores(model: ir.Model) -> None:
    for node in named(model, "self.softmax"):
        node.replace_input_with(0, insert_node(node, "Tanh", [node.inputs[0]], name=f"{node.name}.cap"))


@pytest.mark.parametrize("edit", [swapped_heads, softmax_over_queries, capped_scores], ids=lambda edit: edit.__name__)
def test_what_is_no_plain_attention_stays(edit):
    assert_untouched(changed_bert(edit), fuse_attention)


def test_a_mask_that_only_lowers_is_added_as_it_is():
    before = changed_bert(negative_mask)
    after, changed = rewritten(before, fuse_attention)
    assert changed == LAYERS
    attention = next(node for node in after.graph.node if node.op_type == "MultiHeadAttention")
    assert not attention.input[4]
    assert attention.input[5]
    for feed in FEEDS:
        assert relative_error(outputs(after, feed), outputs(before, feed)) <= TIGHT


def test_a_model_without_attention_is_left_alone():
    assert_untouched(parsed("g (float[n, 4] x) => (float[n, 4] y) { y = Softmax(x) }"), fuse_attention)


def quantized(model: onnx.ModelProto, folder) -> onnx.ModelProto:
    onnx.save(model, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "int8.onnx", per_channel=True, reduce_range=True)
    return onnx.load(folder / "int8.onnx")


@pytest.mark.parametrize("traits", [{}, {"segmented_qkv": True}], ids=str)
def test_the_quantizer_takes_a_fused_model_and_is_no_worse_on_it(traits, tmp_path):
    before = flash(**traits)
    after, _changed = rewritten(before, fuse_attention)
    fused, spelled = quantized(after, tmp_path), quantized(before, tmp_path)
    assert kinds(fused)["QAttention"] == LAYERS
    errors = [[relative_error(outputs(m, feed), outputs(before, feed)) for feed in FEEDS] for m in (fused, spelled)]
    assert np.mean(errors[0]) < 1.2 * np.mean(errors[1]) < 0.3
