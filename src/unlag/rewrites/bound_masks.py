"""Attention masks as one small sum that an NPU computes in codes: finite, without choices and without copies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from unlag.model.facts import facts_of
from unlag.model.graph import add_constant, insert_node, opset_of, sweep
from unlag.rewrites.attention_layout import read_layout
from unlag.rewrites.attention_mask import Mask, read_between
from unlag.rewrites.attention_operands import ROUNDING
from unlag.rewrites.attention_pattern import AttentionBlock, attention_blocks, probe_feeds
from unlag.rewrites.evaluate import Evaluator
from unlag.rewrites.model_index import ModelIndex
from unlag.rewrites.plain_view import plain_view

HIDDEN = -100.0
"""What is added to a hidden token's score: exp(-100) is 0 beside any score that a trained network gives, and a range of
codes that begins there still has steps of 0.002 in 16 bits. With the lowest float32 every visible score is one code."""

_AXES_AS_INPUT = 13
"""The opset from which on Unsqueeze takes its axes as an input."""


def bound_masks(model: ir.Model, hidden: float = HIDDEN) -> int:
    """softmax(scores · factor + mask), with mask = (padding − 1) · 100; how many blocks that were.

    What a mask does is told by running it on a small example: hide padding, hide what comes later, or nothing. However
    it is written (comparisons, a choice between 0 and −∞, copies for every head), it becomes a product and a sum over
    [batch, 1, 1, keys]. A mask that does something else is bounded, and stays as it is otherwise. What comes later is
    hidden by a constant, so that has to wait until the number of tokens is fixed.
    """
    facts = plain_view(facts_of(model))
    index = ModelIndex(facts, model)
    masks = _Masks(model, hidden)
    bounded = 0
    for block in attention_blocks(facts):
        layout = None if block.fused else read_layout(index, block)
        between = None if layout is None else read_between(index, block, layout.operands)
        if layout is None or between is None or layout.operands.query.flat or _is_bounded(index, between[1], hidden):
            continue
        bounded += masks.rewrite(block, between[0], between[1], layout.operands.query.columns().shape[1])
    if bounded:
        sweep(model)
    return bounded


def _is_bounded(index: ModelIndex, mask: Mask, hidden: float) -> bool:
    """Whether there is nothing to do: no mask at all, or one that adds no less for inputs of ones and of zeros."""
    if mask.kind != "bias":
        return mask.kind == "none" and not mask.causal
    ones = probe_feeds(index, ())
    values = [Evaluator(index, feeds).value(mask.name) for feeds in (ones, {n: 0 * array for n, array in ones.items()})]
    return all(value is not None and float(value.astype(np.float64).min()) >= hidden for value in values)


class _Masks:
    """Masks that the blocks of a graph share."""

    def __init__(self, model: ir.Model, hidden: float) -> None:
        self._graph = model.graph
        self._axes_as_input = opset_of(model) >= _AXES_AS_INPUT
        self._hidden = hidden
        self._values = {str(v.name): v for v in model.graph.inputs}
        self._values |= {str(out.name): out for node in model.graph for out in node.outputs if out.name}
        self._made: dict[str, ir.Value] = {}

    def rewrite(self, block: AttentionBlock, factor: float, mask: Mask, sequence: int) -> bool:
        """Let the Softmax of a block read its scores times the factor, plus the mask."""
        softmax = self._values[block.softmax]
        readers = [use.node for use in softmax.uses() if use.node.op_type == "Softmax"]
        if not readers or (mask.causal and not self._is_fixed()):
            return False
        name = f"{block.node}.masked"
        before = readers[0]
        value = self._values[block.scores]
        if abs(factor - 1) > ROUNDING:
            value = insert_node(before, "Mul", [value, self._number(factor)], name=f"{name}.scaled")
        for bias in self._biases(mask, sequence):
            value = insert_node(before, "Add", [value, bias], name=f"{name}.{bias.name}")
            value.shape, value.type = softmax.shape, softmax.type
        for reader in readers:
            reader.replace_input_with(0, value)
        return True

    def _is_fixed(self) -> bool:
        """Whether every dimension of every input is."""
        shapes = [value.shape for value in self._graph.inputs]
        return all(shape is not None and shape.is_static() for shape in shapes)

    def _biases(self, mask: Mask, sequence: int) -> list[ir.Value]:
        if mask.kind == "bias":
            return [self._bounded(mask.name)]
        found = [self._padding(mask.name)] if mask.kind == "padding" else []
        return [*found, self._later(sequence)] if mask.causal else found

    def _padding(self, name: str) -> ir.Value:
        """(padding − 1) · 100, [batch, 1, 1, keys]."""
        if name in self._made:
            return self._made[name]
        source, first = self._values[name], next(iter(self._graph))
        axes = [1, 2]
        if self._axes_as_input:
            listed: list[ir.Value | None] = [source, add_constant(self._graph, np.array(axes), f"{name}.mask.axes")]
            value = insert_node(first, "Unsqueeze", listed, name=f"{name}.mask.axes_added")
        else:
            value = insert_node(first, "Unsqueeze", [source], name=f"{name}.mask.axes_added", attributes={"axes": axes})
        for op_type, number in (("Cast", None), ("Sub", 1.0), ("Mul", -self._hidden)):
            attributes = {"to": int(ir.DataType.FLOAT)} if op_type == "Cast" else {}
            inputs: list[ir.Value | None] = [value] if number is None else [value, self._number(number)]
            value = insert_node(first, op_type, inputs, name=f"{name}.mask.{op_type}", attributes=attributes)
        self._made[name] = value
        return value

    def _later(self, sequence: int) -> ir.Value:
        """−100 for every key behind a query, [1, 1, queries, keys]."""
        if "later" not in self._made:
            later = np.triu(np.full((sequence, sequence), self._hidden, np.float32), 1)
            self._made["later"] = add_constant(self._graph, later[None, None], "mask.later")
        return self._made["later"]

    def _bounded(self, name: str) -> ir.Value:
        """A mask of another kind, not below −100."""
        if name not in self._made:
            source = self._values[name]
            reader = next(use.node for use in source.uses())
            low = self._number(self._hidden)
            self._made[name] = insert_node(reader, "Max", [source, low], name=f"{name}.bounded")
        return self._made[name]

    def _number(self, number: float) -> ir.Value:
        key = f"number {number}"
        if key not in self._made:
            self._made[key] = add_constant(self._graph, np.array(number, np.float32), f"mask.{number:.6g}")
        return self._made[key]
