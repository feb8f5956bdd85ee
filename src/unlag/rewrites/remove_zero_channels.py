"""Channels that are all zero, cut out of the two products around them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import GraphIndex, facts_of
from unlag.model.graph import add_constant, constant_array, sweep
from unlag.rewrites.channel_pairs import ChannelPair, find_channel_pairs, input_axis, output_axis
from unlag.rewrites.known_values import fixed_facts

Array = npt.NDArray[np.generic]


def remove_zero_channels(model: ir.Model) -> int:
    """x·A → f → ·B with zero columns of A or zero rows of B becomes the same with these cut out; counts channels.

    A column of A counts where its bias is zero too and f(0) = 0, a row of B in any case.
    """
    removed = 0
    pairs = find_channel_pairs(GraphIndex(fixed_facts(facts_of(model))))
    nodes = {str(node.outputs[0].name): node for node in model.graph}
    values = {str(v.name): v for node in model.graph for v in node.inputs if v is not None}
    for pair in pairs:
        # the pair before may have cut this one's first weight
        first, second = nodes[pair.first.outputs[0]], nodes[pair.second.outputs[0]]
        held = {name: constant_array(values[name]) for name in pair.vectors}
        weights = constant_array(first.inputs[1]), constant_array(second.inputs[1])
        if any(array is None for array in (*held.values(), *weights)):
            continue
        arrays = [np.asarray(array) for array in weights]
        vectors = {name: np.asarray(array) for name, array in held.items()}
        keep = _kept(pair, arrays[0], arrays[1], vectors)
        if keep.all():
            continue
        _replace(model.graph, first, 1, np.compress(keep, arrays[0], output_axis(pair.first)))
        _replace(model.graph, second, 1, np.compress(keep, arrays[1], input_axis(pair.second)))
        _cut_vectors(model.graph, values, vectors, keep)
        removed += int((~keep).sum())
    if removed:
        _forget_shapes(model)
        sweep(model)
    return removed


def _kept(pair: ChannelPair, first: Array, second: Array, vectors: dict[str, Array]) -> npt.NDArray[np.bool_]:
    """Channels that something goes through; one at least."""
    unread = _is_zero_along(second, input_axis(pair.second))
    unmade = _is_zero_along(first, output_axis(pair.first))
    for array in vectors.values():
        unmade &= array.reshape(-1) == 0
    keep: npt.NDArray[np.bool_] = ~(unread | (unmade & pair.zero_stays))
    if not keep.any():
        keep[0] = True
    return keep


def _is_zero_along(weight: Array, axis: int) -> npt.NDArray[np.bool_]:
    others = tuple(a for a in range(weight.ndim) if a != axis)
    return np.asarray(~(weight != 0).any(axis=others))


def _cut_vectors(
    graph: ir.Graph, values: dict[str, ir.Value], vectors: dict[str, Array], keep: npt.NDArray[np.bool_]
) -> None:
    for name, array in vectors.items():
        axis = next(axis for axis, size in enumerate(array.shape) if size == keep.size)
        cut = add_constant(graph, np.compress(keep, array, axis), f"{name}.cut")
        values[name].replace_all_uses_with(cut)


def _replace(graph: ir.Graph, node: ir.Node, position: int, array: Array) -> None:
    value = node.inputs[position]
    name = "weight" if value is None else str(value.name)
    node.replace_input_with(position, add_constant(graph, np.ascontiguousarray(array), f"{name}.cut"))


def _forget_shapes(model: ir.Model) -> None:
    """Widths that the file declares inside the graph may be those before the cut."""
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
