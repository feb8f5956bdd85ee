from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import add_constant, constant_array, insert_node
from unlag.rewrites.neighbors import sole_reader

BUCKETS, HEADS = 32, 48
VARIANT_OPTIONS = STANDARD_OPTIONS = {"disable": "SkipLayerNormFusion"}
"""With fixed shapes the runtime would fuse residual and normalization, which is slower on some machines."""
NEWEST_SIGNATURES = 13
"""Since this opset, axes are inputs."""


def plant() -> Pair:
    return Pair(tiny_bert(), {}, infected(), {})


def twin() -> Pair:
    """The standard: symbolic dimensions, with one position table that is cut to the sequence's length."""
    return Pair(fixed(), STANDARD_OPTIONS, tiny_bert(), VARIANT_OPTIONS)


@cache
def infected() -> onnx.ModelProto:
    model = editable(tiny_bert())
    infect(model)
    return ir.to_proto(model)


def fixed() -> onnx.ModelProto:
    model = editable(tiny_bert())
    for value in model.graph.inputs:
        value.shape = ir.Shape((2, 8))
    return ir.to_proto(model)


def infect(model: ir.Model) -> int:
    """Let Reshape targets, attention's position bias and convolutions' padding be computed from sizes at every run."""
    old = model.opset_imports[""] < NEWEST_SIGNATURES
    if old or all(isinstance(d, int) for value in model.graph.inputs for d in value.shape or ()):
        return 0
    places = 0
    for node in list(model.graph):
        if node.op_type == "Reshape":
            places += _compute_target(model, node)
        elif node.op_type == "Softmax" and _is_last_axis(node):
            places += _compute_bias(model, node)
        elif node.op_type == "Conv":
            places += _compute_padding(model, node)
    return places


def _node(before: ir.Node, op_type: str, inputs: list, part: str, **attributes) -> ir.Value:
    return insert_node(before, op_type, inputs, name=f"{before.outputs[0].name}.{part}", attributes=attributes)


def _integers(model: ir.Model, *values: int) -> ir.Value:
    return add_constant(model.graph, np.array(values, np.int64), f"size.{'.'.join(map(str, values))}")


def _size(model: ir.Model, before: ir.Node, value: ir.Value, axis: int, part: str) -> ir.Value:
    """One size of a tensor, [1], as exporters write it."""
    shape = _node(before, "Shape", [value], f"{part}.shape")
    return _node(before, "Gather", [shape, _integers(model, axis)], f"{part}.size")


def _compute_target(model: ir.Model, node: ir.Node) -> bool:
    target = constant_array(node.inputs[1])
    if target is None or 0 not in target or "allowzero" in node.attributes:
        return False
    parts = [
        _size(model, node, node.inputs[0], axis, f"{axis}") if size == 0 else _integers(model, int(size))
        for axis, size in enumerate(target)
    ]
    node.replace_input_with(1, _node(node, "Concat", parts, "target", axis=0))
    return True


def _is_last_axis(node: ir.Node) -> bool:
    return node.attributes.get_int("axis", -1) in {-1, 3} and node.inputs[0].producer() is not None


def _compute_bias(model: ir.Model, node: ir.Node) -> bool:
    """Add a relative-position bias, looked up for each pair of positions at every run; its table holds zeros."""
    scores = node.inputs[0]
    added = scores.producer()
    if added.op_type != "Add" or sole_reader(scores) is not node:
        return False
    zero, step = (add_constant(model.graph, np.array(v, np.int64), "scalar") for v in (0, 1))
    positions = []
    for axis in (-2, -1):
        size = _node(node, "Squeeze", [_size(model, node, added.inputs[0], axis, f"{axis}")], f"{axis}.scalar")
        steps = _node(node, "Range", [zero, size, step], f"{axis}.range")
        positions.append(_node(node, "Unsqueeze", [steps, _integers(model, -axis - 1)], f"{axis}.positions"))
    distance = _node(node, "Abs", [_node(node, "Sub", positions, "signed")], "distance")
    bucket = _node(node, "Min", [distance, _integers(model, BUCKETS - 1)], "bucket")
    table = add_constant(model.graph, np.zeros((BUCKETS, HEADS), np.float32), "relative.bias")
    looked_up = _node(node, "Gather", [table, bucket], "bias")
    by_head = _node(node, "Transpose", [looked_up], "by_head", perm=[2, 0, 1])
    shared = _node(node, "ReduceSum", [by_head, _integers(model, 0)], "shared", keepdims=0)
    full = _node(node, "Expand", [shared, _node(node, "Shape", [added.inputs[0]], "whole")], "full")
    node.replace_input_with(0, _node(node, "Add", [scores, full], "biased"))
    return True


def _compute_padding(model: ir.Model, node: ir.Node) -> bool:
    """Pad in front of the convolution by a width computed from the image's, as for "same" padding."""
    pads = [int(p) for p in node.attributes.get_ints("pads", [])]
    if len(pads) != 4 or len(set(pads)) != 1 or not pads[0] or node.inputs[0].producer() is None:
        return False
    image = node.inputs[0]
    widths = []
    for axis in (2, 3):
        size = _size(model, node, image, axis, f"{axis}")
        padded = _node(node, "Add", [size, _integers(model, 2 * pads[0])], f"{axis}.padded")
        total = _node(node, "Sub", [padded, size], f"{axis}.total")
        widths.append(_node(node, "Div", [total, _integers(model, 2)], f"{axis}.width"))
    none = _integers(model, 0, 0)
    both = _node(node, "Concat", [none, *widths, none, *widths], "widths", axis=0)
    node.replace_input_with(0, _node(node, "Pad", [image, both], "pad"))
    node.attributes["pads"] = ir.AttrInt64s("pads", [0, 0, 0, 0])
    return True
