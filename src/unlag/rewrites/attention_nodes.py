"""Fused attention operators written into a graph: their masks, their heads, and what joins them to the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from unlag.model.facts import facts_of
from unlag.model.graph import add_constant, insert_node, opset_of, replace_output, sweep
from unlag.rewrites.attention_layout import Layout, read_layout
from unlag.rewrites.attention_operands import Held, HeldForms, held_forms
from unlag.rewrites.attention_pattern import AttentionBlock, attention_blocks
from unlag.rewrites.element_types import element_types
from unlag.rewrites.model_index import ModelIndex
from unlag.rewrites.plain_view import code_values, plain_view

DOMAIN = "com.microsoft"
LOWEST = float(np.finfo(np.float32).min)
_SHAPE_OF_AXES = 15
"""The opset from which on Shape gives single axes."""
_QUERY_AXIS = 1

Attributes = Mapping[str, int | float | str | list[int] | list[float]]


@dataclass
class AttentionGraph:
    """A graph under change: its blocks as the plain view has them, and its values by name."""

    model: ir.Model
    index: ModelIndex
    values: dict[str, ir.Value]
    floats: frozenset[str]
    """Names of the values that hold float32."""
    made: dict[str, ir.Value] = field(default_factory=dict)
    """Masks and sizes that blocks share, by what they are."""

    def forms(self, block: AttentionBlock, layout: Layout) -> tuple[HeldForms, HeldForms, HeldForms]:
        """Where queries, keys and values can be read."""
        operands = layout.operands
        query, key, value = (
            held_forms(self.index, path, operand, operands.feeds, self.floats)
            for path, operand in zip(block.paths, operands[:3], strict=True)
        )
        return query, key, value

    def value_of(self, held: Held | None) -> ir.Value:
        """The value that was found to hold an operand."""
        if held is None:
            raise ValueError("the operand is held by no value")
        return self.values[held.name]

    def columns(self, forms: HeldForms, before: ir.Node, name: str) -> tuple[ir.Value, Held] | None:
        """[batch, sequence, heads · head size], put together from split heads where nothing else is there."""
        if forms.columns is not None:
            return self.values[forms.columns.name], forms.columns
        if forms.split is None:
            return None
        back = insert_node(
            before, "Transpose", [self.values[forms.split.name]], name=f"{name}.turned",
            attributes={"perm": [0, 2, 1, 3]},
        )  # fmt: skip
        if "joined" not in self.made:
            self.made["joined"] = add_constant(self.model.graph, np.array([0, 0, -1], np.int64), "heads.joined")
        joined = insert_node(before, "Reshape", [back, self.made["joined"]], name=f"{name}.joined")
        joined.type = ir.TensorType(ir.DataType.FLOAT)
        return joined, forms.split

    def padding(self, name: str) -> ir.Value:
        """A graph input of ones and zeros as int32."""
        source = self.values[name]
        if source.dtype == ir.DataType.INT32:
            return source
        key = f"{name}.int32"
        if key not in self.made:
            first = next(iter(self.model.graph))
            cast = insert_node(first, "Cast", [source], name=key, attributes={"to": int(ir.DataType.INT32)})
            cast.type, cast.shape = ir.TensorType(ir.DataType.INT32), source.shape
            self.made[key] = cast
        return self.made[key]

    def bias(self, name: str, before: ir.Node, query: ir.Value, key: tuple[ir.Value, int]) -> ir.Value:
        """An additive mask with its query and key axes written out: operators broadcast over batch and heads only.

        ``query`` is [batch, queries, columns]; ``key`` is a value, and the axis of it that has the keys' number.
        """
        made = f"{name}.expanded"
        if made not in self.made:
            ones = add_constant(self.model.graph, np.array([1, 1], np.int64), f"{made}.ones")
            queries = self._length(query, _QUERY_AXIS, before, f"{made}.queries")
            keys = self._length(*key, before, f"{made}.keys")
            shape = insert_node(before, "Concat", [ones, queries, keys], name=f"{made}.shape", attributes={"axis": 0})
            self.made[made] = insert_node(before, "Expand", [self.values[name], shape], name=made)
        return self.made[made]

    def _length(self, value: ir.Value, axis: int, before: ir.Node, name: str) -> ir.Value:
        """The size of one axis, as one element."""
        if opset_of(self.model) >= _SHAPE_OF_AXES:
            return insert_node(before, "Shape", [value], name=name, attributes={"start": axis, "end": axis + 1})
        sizes = insert_node(before, "Shape", [value], name=f"{name}.sizes")
        place = add_constant(self.model.graph, np.array([axis], np.int64), f"{name}.axis")
        return insert_node(before, "Gather", [sizes, place], name=name)

    def replace(self, block: AttentionBlock, layout: Layout, fused: Fused) -> None:
        """Put the operator in the place of the block."""
        merged = self.values[layout.merged]
        inputs = list(fused.inputs)
        while inputs[-1] is None:
            inputs.pop()
        name = f"{block.node}.fused"
        output = insert_node(fused.last, fused.op_type, inputs, name=name, domain=DOMAIN, attributes=fused.attributes)
        output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), self._shape(merged, layout)
        replace_output(merged, output)

    def _shape(self, merged: ir.Value, layout: Layout) -> ir.Shape:
        """[batch, sequence, width], the first two as the file names them there, or a two-dimensional input does."""
        if merged.shape is not None and len(merged.shape) == 3:
            return ir.Shape([merged.shape[0], merged.shape[1], layout.width])
        inputs = self.model.graph.inputs
        named = next((v.shape for v in inputs if v.shape is not None and len(v.shape) == 2), None)
        return ir.Shape([*(named if named is not None else ("batch", "sequence")), layout.width])


@dataclass(frozen=True)
class Fused:
    """One operator for a block, and the node that it is put in front of."""

    op_type: str
    inputs: tuple[ir.Value | None, ...]
    attributes: Attributes
    last: ir.Node


Fuse = Callable[[AttentionGraph, AttentionBlock, Layout, ir.Node], Fused | None]
"""Makes the operator for a block, or nothing where it can't be one; the node is the last of the block."""


def fuse_blocks(model: ir.Model, fuse: Fuse) -> int:
    """Replace every spelled-out block that is fully understood by what ``fuse`` makes of it; count them.

    Blocks are looked for in the plain view, so that codes and their scales in the middle do not hide them. Values that
    were rounded to codes there are not rounded any more.
    """
    written = facts_of(model)
    facts = plain_view(written)
    index = ModelIndex(facts, model)
    blocks = [block for block in attention_blocks(facts) if not block.fused]
    if not blocks:
        return 0
    values = {str(v.name): v for v in (*model.graph.inputs, *model.graph.initializers.values()) if v.name}
    values |= {str(v.name): v for node in model.graph for v in node.outputs if v.name}
    types = element_types(model)
    typed = {name for name, value in values.items() if types.get(value, ir.DataType.FLOAT) == ir.DataType.FLOAT}
    floats = frozenset(typed - code_values(written))
    graph = AttentionGraph(model, index, values, floats)
    plans = [(block, layout) for block in blocks if (layout := read_layout(index, block, floats)) is not None]
    fused = sum(_fuse(graph, block, layout, fuse) for block, layout in plans)
    if fused:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return fused


def _fuse(graph: AttentionGraph, block: AttentionBlock, layout: Layout, fuse: Fuse) -> bool:
    last = graph.values[layout.merged].producer()
    if last is None or last.graph is not graph.model.graph:
        return False
    fused = fuse(graph, block, layout, last)
    if fused is None:
        return False
    graph.replace(block, layout, fused)
    return True


def mask_attributes(layout: Layout) -> dict[str, int | float | str | list[int] | list[float]]:
    """What operators are told of the scale and of the mask."""
    attributes: dict[str, int | float | str | list[int] | list[float]] = {"num_heads": layout.heads}
    if layout.mask.kind == "padding":
        attributes["mask_filter_value"] = max(layout.mask.hidden, LOWEST)
    if layout.mask.causal:
        attributes["unidirectional"] = 1
    return attributes
