"""Spelled-out attention replaced by one fused operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from unlag.model.facts import GraphIndex, facts_of
from unlag.model.graph import add_constant, constant_array, insert_node, opset_of, replace_output, sweep
from unlag.rewrites.attention_layout import Layout, head_values, read_layout
from unlag.rewrites.attention_pattern import AttentionBlock, attention_blocks
from unlag.rewrites.element_types import element_types
from unlag.rewrites.projections import Projection

DOMAIN = "com.microsoft"
LOWEST = float(np.finfo(np.float32).min)
_HALF = ir.DataType.FLOAT16
_SHAPE_OF_AXES = 15
"""The opset from which on Shape gives single axes."""


@dataclass
class _Graph:
    """A graph under change, with its values by name."""

    model: ir.Model
    index: GraphIndex
    values: dict[str, ir.Value]
    types: dict[ir.Value, ir.DataType]
    masks: dict[str, ir.Value]
    """Padding masks as int32, by the graph input they come from."""


def fuse_attention(model: ir.Model) -> int:
    """softmax(s·(x·Wq)·(x·Wk)ᵀ + mask)·(x·Wv), heads and all, becomes Attention(x, [Wq Wk Wv], mask).

    Where the three projections have one input and constant weights, they are packed into the operator; else it
    is MultiHeadAttention behind the projections as they are. A padding mask is handed over as the ones and zeros
    of the graph's input, any other additive mask as it is. What the layout check does not fully understand stays.
    """
    facts = facts_of(model)
    index = GraphIndex(facts)
    values = {str(v.name): v for v in (*model.graph.inputs, *model.graph.initializers.values()) if v.name}
    values |= {str(v.name): v for node in model.graph for v in node.outputs if v.name}
    graph = _Graph(model, index, values, element_types(model), {})
    plans = [(block, layout) for block in attention_blocks(facts) if (layout := read_layout(index, block)) is not None]
    fused = sum(_fuse(graph, block, layout) for block, layout in plans)
    if fused:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return fused


def _fuse(graph: _Graph, block: AttentionBlock, layout: Layout) -> bool:
    merged = graph.values.get(layout.merged)
    last = None if merged is None else merged.producer()
    if merged is None or last is None or last.graph is not graph.model.graph or graph.types.get(merged) == _HALF:
        return False
    packed = _packed(graph, block, layout)
    separate = [] if packed is not None else [graph.values[n] for n in head_values(graph.index, block, layout) or ()]
    if packed is not None:
        padding, bias = _mask(graph, layout, last, (packed[0], packed[0]))
        op_type, inputs = "Attention", [*packed, padding, None, bias]
    elif separate and all(graph.types.get(v) == ir.DataType.FLOAT for v in separate):
        padding, bias = _mask(graph, layout, last, (separate[0], separate[1]))
        op_type, inputs = "MultiHeadAttention", [*separate, None, padding, bias]
    else:
        return False
    while inputs[-1] is None:
        inputs.pop()
    attributes = {
        "num_heads": layout.heads,
        "scale": layout.scale,
        "mask_filter_value": max(layout.mask.hidden, LOWEST),
    }
    if layout.mask.kind != "padding":
        attributes.pop("mask_filter_value")
    output = insert_node(last, op_type, inputs, name=f"{block.node}.fused", domain=DOMAIN, attributes=attributes)
    output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), _shape(graph.model, layout)
    replace_output(merged, output)
    return True


def _shape(model: ir.Model, layout: Layout) -> ir.Shape:
    """[batch, sequence, width], the first two named as a two-dimensional input names them."""
    named = next((v.shape for v in model.graph.inputs if v.shape is not None and len(v.shape) == 2), None)
    return ir.Shape([*(named if named is not None else ("batch", "sequence")), layout.width])


def _packed(graph: _Graph, block: AttentionBlock, layout: Layout) -> tuple[ir.Value, ir.Value, ir.Value | None] | None:
    """The operator's input, weight and bias; nothing where the projections can't be one constant weight."""
    parts = [p for p in block.projections if p is not None]
    products = [graph.index.producer(p.product) for p in parts]
    if len({p.source for p in parts}) != 1 or any(p is None or p.op_type != "MatMul" for p in products):
        return None
    source, starts, width = graph.values[parts[0].source], layout.starts, layout.width
    whole = len({p.output for p in parts}) == 1 and starts == (0, width, 2 * width) and parts[0].width == 3 * width
    weights = [constant_array(graph.values.get(p.weight)) for p in parts]
    if any(w is None or w.ndim != 2 or w.dtype != np.float32 for w in weights):
        return None  # a dequantized weight keeps its integer kernel when it stays a product of its own
    if whole:
        bias = None if parts[0].bias is None else graph.values.get(parts[0].bias)
        return source, graph.values[parts[0].weight], bias
    columns = [np.asarray(w)[:, s : s + width] for w, s in zip(weights, starts, strict=True)]
    name = f"{block.node}.qkv"
    weight = add_constant(graph.model.graph, np.concatenate(columns, axis=1), f"{name}.weight")
    return source, weight, _packed_bias(graph, parts, layout, f"{name}.bias")


def _packed_bias(graph: _Graph, parts: list[Projection], layout: Layout, name: str) -> ir.Value | None:
    if all(p.bias is None for p in parts):
        return None
    pieces = []
    for projection, start in zip(parts, layout.starts, strict=True):
        array = None if projection.bias is None else constant_array(graph.values.get(projection.bias))
        full = np.zeros(start + layout.width, np.float32) if array is None else np.asarray(array, np.float32)
        pieces.append(full[start : start + layout.width])
    return add_constant(graph.model.graph, np.concatenate(pieces), name)


def _mask(
    graph: _Graph, layout: Layout, last: ir.Node, sized: tuple[ir.Value, ir.Value]
) -> tuple[ir.Value | None, ir.Value | None]:
    """The operator's padding mask and additive bias, one of them at most; ``sized`` have the lengths of q and k."""
    mask = layout.mask
    if mask.kind == "none":
        return None, None
    source = graph.values[mask.name]
    if mask.kind == "bias":
        return None, _expanded(graph, source, sized, last)
    if source.dtype == ir.DataType.INT32:
        return source, None
    if mask.name not in graph.masks:
        first = next(iter(graph.model.graph))
        cast = insert_node(
            first, "Cast", [source], name=f"{mask.name}.int32", attributes={"to": int(ir.DataType.INT32)}
        )
        cast.type, cast.shape = ir.TensorType(ir.DataType.INT32), source.shape
        graph.masks[mask.name] = cast
    return graph.masks[mask.name], None


def _expanded(graph: _Graph, bias: ir.Value, sized: tuple[ir.Value, ir.Value], last: ir.Node) -> ir.Value:
    """The bias with its query and key axes written out: the operator broadcasts over batch and heads only."""
    name = f"{bias.name}.expanded"
    if name not in graph.masks:
        ones = add_constant(graph.model.graph, np.array([1, 1], np.int64), f"{name}.ones")
        lengths = [
            _length(graph, value, last, f"{name}.{part}")
            for value, part in zip(sized, ("queries", "keys"), strict=True)
        ]
        shape = insert_node(last, "Concat", [ones, *lengths], name=f"{name}.shape", attributes={"axis": 0})
        graph.masks[name] = insert_node(last, "Expand", [bias, shape], name=name)
    return graph.masks[name]


def _length(graph: _Graph, value: ir.Value, last: ir.Node, name: str) -> ir.Value:
    """The size of axis 1, as one element."""
    if opset_of(graph.model) >= _SHAPE_OF_AXES:
        return insert_node(last, "Shape", [value], name=name, attributes={"start": 1, "end": 2})
    sizes = insert_node(last, "Shape", [value], name=f"{name}.sizes")
    one = add_constant(graph.model.graph, np.array([1], np.int64), f"{name}.axis")
    return insert_node(last, "Gather", [sizes, one], name=name)
