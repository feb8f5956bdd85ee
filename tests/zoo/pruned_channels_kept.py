import numpy as np
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.facts import GraphIndex, facts_of
from unlag.model.graph import constant_array
from unlag.rewrites.channel_pairs import find_channel_pairs, input_axis, output_axis
from unlag.rewrites.remove_zero_channels import remove_zero_channels

PRUNED = 0.25
SCATTERED = 0.5


def plant() -> Pair:
    standard, variant = editable(tiny_bert()), editable(tiny_bert())
    standardize(standard)
    infect(variant)
    return Pair(ir.to_proto(standard), {}, ir.to_proto(variant), {})


def twin() -> Pair:
    """As many zeros, but scattered: no channel can be cut."""
    rng = np.random.default_rng(0)
    model = editable(tiny_bert())
    for name, value in model.graph.initializers.items():
        array = value.const_value.numpy()
        if array.ndim == 2 and array.dtype == np.float32 and "embedding" not in name:
            value.const_value = ir.tensor(
                np.where(rng.random(array.shape) < SCATTERED, 0, array).astype(np.float32), name=name
            )
    return Pair(ir.to_proto(model), {}, ir.to_proto(model), {})


def standardize(model: ir.Model) -> int:
    """The model to compare with: pruned alike, and the pruned channels cut out. (Pruning changes the outputs.)"""
    infect(model)
    return remove_zero_channels(model)


def infect(model: ir.Model) -> int:
    """Zero the weaker channels between two products, and leave them in; each product is one of a pair only once."""
    pairs = find_channel_pairs(GraphIndex(facts_of(model)))
    constants = dict(model.graph.initializers.items())
    touched: set[str] = set()
    changed = 0
    for pair in pairs:
        ends = {pair.first.outputs[0], pair.second.outputs[0]}
        if ends & touched:
            continue
        touched |= ends
        changed += 1
        first, second = pair.first.inputs[1], pair.second.inputs[1]
        strength = _strength(constant_array(constants[first]), output_axis(pair.first))
        weak = np.argsort(strength)[: int(PRUNED * strength.size)]
        _zero(constants[first], output_axis(pair.first), weak)
        _zero(constants[second], input_axis(pair.second), weak)
        for name in pair.vectors:
            shape = constants[name].const_value.numpy().shape
            _zero(constants[name], shape.index(pair.channels), weak)
    return changed


def _strength(weight: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(weight).sum(axis=tuple(a for a in range(weight.ndim) if a != axis))


def _zero(value: ir.Value, axis: int, places: np.ndarray) -> None:
    array = np.array(value.const_value.numpy())
    np.moveaxis(array, axis, 0)[places] = 0
    value.const_value = ir.tensor(array, name=value.name)
