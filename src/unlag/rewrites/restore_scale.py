"""The attention scale that a variant lost, or has twice."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from unlag.model.facts import GraphFacts, facts_of
from unlag.model.graph import add_constant
from unlag.rewrites.attention_pattern import AttentionBlock, attention_blocks
from unlag.rewrites.element_types import element_types
from unlag.rewrites.evaluate import Array
from unlag.rewrites.neighbors import readers

TOLERANCE = 1e-3
"""Scales nearer than this are the same: float16 rounds a scale by up to 5e-4."""


def restore_scale(model: ir.Model, factors: Mapping[str, float]) -> int:
    """softmax(q·kᵀ + mask) becomes softmax(f·q·kᵀ + mask), f by the name of the product's output.

    The Mul goes directly behind the product, before the mask: a scaled mask would leak padding. ``factors`` come
    from ``missing_factors``; a block whose factor is 1 is left alone.
    """
    types = element_types(model)
    by_name = {value.name: value for node in model.graph for value in node.outputs}
    restored = 0
    for name, factor in factors.items():
        scores = by_name.get(name)
        if scores is None or abs(factor - 1) <= TOLERANCE or scores.is_graph_output():
            continue
        dtype = types.get(scores, ir.DataType.FLOAT)
        _scale(model.graph, scores, np.array(factor, dtype.numpy()))
        restored += 1
    return restored


def _scale(graph: ir.Graph, scores: ir.Value, factor: Array) -> None:
    node = scores.producer()
    if node is None:
        raise ValueError(f"{scores.name} is made by no node")
    reading = readers(scores)
    constant = add_constant(graph, factor, f"{scores.name}.scale")
    scaled = ir.node("Mul", [scores, constant], name=f"{scores.name}.restored")
    scaled.outputs[0].name = f"{scores.name}.restored"
    scaled.outputs[0].type, scaled.outputs[0].shape = scores.type, scores.shape
    graph.insert_after(node, scaled)
    for reader, position in reading:
        reader.replace_input_with(position, scaled.outputs[0])


def missing_factors(variant: GraphFacts, standard: GraphFacts) -> dict[str, float]:
    """The standard's scale over the variant's, of each spelled-out block, by the name of its product's output.

    Blocks are matched in the graphs' order; nothing where their numbers differ or a scale can't be told.
    """
    ours, theirs = attention_blocks(variant), attention_blocks(standard)
    if len(ours) != len(theirs):
        return {}
    return {b.scores: factor for b, s in zip(ours, theirs, strict=True) if (factor := _factor(b, s)) is not None}


def _factor(block: AttentionBlock, standard: AttentionBlock) -> float | None:
    if block.fused or block.scale is None or standard.scale is None:
        return None
    factor = standard.scale / block.scale
    return None if abs(factor - 1) <= TOLERANCE else factor


def restore_scale_from(model: ir.Model, standard: ir.Model) -> int:
    """Bring every block's scale back to the standard's."""
    return restore_scale(model, missing_factors(facts_of(model), facts_of(standard)))
