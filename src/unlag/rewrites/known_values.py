"""Values of a graph that are the same in every run: constants, known sizes, and what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import onnx_ir as ir

from unlag.model.facts import GraphFacts, GraphIndex, Node, facts_of
from unlag.rewrites.evaluate import Array, Evaluator
from unlag.rewrites.inferred_shapes import Shape, inferred_shapes
from unlag.rewrites.unlist_initializers import FIRST_WITH_CONSTANTS


def known_values(model: ir.Model) -> Evaluator:
    """An evaluator that knows the model's constants and the sizes that its declared shapes fix.

    Initializers that a caller may override are not known.
    """
    facts = fixed_facts(facts_of(model))
    shapes = inferred_shapes(model)
    index = GraphIndex(facts)
    sizes = {node.outputs[0]: size for node in facts.nodes if (size := _size(index, node, shapes)) is not None}
    return Evaluator(index, sizes)


def fixed_facts(facts: GraphFacts) -> GraphFacts:
    """The same facts without the constants that a caller may override."""
    if facts.ir_version is not None and facts.ir_version < FIRST_WITH_CONSTANTS:
        return facts
    fixed = {name: constant for name, constant in facts.constants.items() if name not in facts.listed_inputs}
    return msgspec.structs.replace(facts, constants=fixed)


def _size(index: GraphIndex, node: Node, shapes: Mapping[str, Shape]) -> Array | None:
    """What a Shape or Size node gives, or a Gather of one known size from a Shape that is not known as a whole."""
    if node.domain:
        return None
    if node.op_type == "Gather":
        return _gathered(index, node, shapes)
    shape = shapes.get(node.inputs[0]) if node.op_type in {"Shape", "Size"} else None
    if shape is None:
        return None
    chosen = shape[_bound(node, "start", 0) : _bound(node, "end", len(shape))] if node.op_type == "Shape" else shape
    known = [size for size in chosen if size is not None]
    if len(known) != len(chosen):
        return None
    return np.array(known if node.op_type == "Shape" else int(np.prod(known)), np.int64)


def _gathered(index: GraphIndex, node: Node, shapes: Mapping[str, Shape]) -> Array | None:
    maker, constant = index.producer(node.inputs[0]), index.constant(node.inputs[1])
    if maker is None or maker.op_type != "Shape" or {"start", "end"} & set(maker.attributes):
        return None
    shape = shapes.get(maker.inputs[0])
    if shape is None or constant is None or constant.values is None:
        return None
    places = [int(place) for place in constant.values]
    if any(not -len(shape) <= place < len(shape) for place in places):
        return None
    known = [size for place in places if (size := shape[place]) is not None]
    return np.array(known, np.int64).reshape(constant.shape) if len(known) == len(places) else None


def _bound(node: Node, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default
