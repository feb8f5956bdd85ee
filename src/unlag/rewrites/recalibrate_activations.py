"""Scales and zero points of activations, set to what the tensors hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from unlag.model.draft import Observed
from unlag.model.facts import GraphIndex, facts_of
from unlag.model.graph import add_constant, constant_array, sweep
from unlag.rewrites.activation_codes import CODE_RANGES, MOVING, QuantizedActivation, quantized_activations
from unlag.rewrites.activation_fit import judge_activations, readbacks_of
from unlag.rewrites.neighbors import made_by, readers

_BIASED = frozenset({"Conv", "Gemm", "ConvTranspose"})
_SMALLEST_SPAN = 1e-12
_SAME_SCALE = 1e-5
"""Scales are stored in float32."""


def recalibrate_activations(model: ir.Model, seen: Observed) -> int:
    """Give misfitting codes scale = (high − low) / (last − first) and the zero point that goes with it.

    Works in QDQ form on the main graph. The range is the one seen, widened to that of the standard's tensor with the
    same values where it is known, since clipping further up hides values here. Codes that are only moved keep one scale
    from end to end, and int32 biases follow the scale of their product's input, as kernels expect of both. Gives the
    number of quantized tensors that were changed.
    """
    index = GraphIndex(facts_of(model))
    activations = {activation.tensor: activation for activation in quantized_activations(index)}
    judged = judge_activations(index, seen)
    spans = {
        judgement.activation.tensor: _span(index, judgement.activation, seen)
        for judgement in judged
        if judgement.fault in {"clipped", "wide"}
    }
    plans = []
    for node in model.graph:
        source = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        activation = None if source is None else activations.get(str(source.name))
        origin = None if activation is None else _origin(node, activation, activations)
        if activation is not None and origin in spans:
            scale, zero = _fitted(spans[origin], activation.dtype)
            if zero != activation.zero or not math.isclose(scale, activation.scale, rel_tol=_SAME_SCALE):
                plans.append((node, scale, zero))
    for node, scale, zero in plans:
        set_scale(model.graph, node, scale, zero)
    if plans:
        sweep(model)
    return len(plans)


def _span(index: GraphIndex, activation: QuantizedActivation, seen: Observed) -> tuple[float, float]:
    """Range that the codes shall have; without negative numbers where they have none, for a Relu may have gone."""
    names = [activation.tensor, *readbacks_of(index, activation)]
    meant = [seen.intended[name] for name in names if name in seen.intended]
    low, high = seen.ranges[activation.tensor]
    if not activation.is_one_sided:
        return min([low, *(span[0] for span in meant)]), max([high, *(span[1] for span in meant)])
    return 0.0, min([high, *(span[1] for span in meant)])


def _origin(node: ir.Node, activation: QuantizedActivation, known: Mapping[str, QuantizedActivation]) -> str:
    """The tensor that the codes come from, through nodes that move them between pairs of one scale."""
    origin, source = activation, node.inputs[0]
    while (mover := made_by(source, *MOVING)) is not None:
        dequantizer = made_by(mover.inputs[0], "DequantizeLinear")
        quantizer = None if dequantizer is None else made_by(dequantizer.inputs[0], "QuantizeLinear")
        source = None if quantizer is None else quantizer.inputs[0]
        before = None if source is None else known.get(str(source.name))
        if before is None or (before.scale, before.zero, before.dtype) != (origin.scale, origin.zero, origin.dtype):
            break
        origin = before
    return origin.tensor


def _fitted(span: tuple[float, float], dtype: str) -> tuple[float, int]:
    """Scale and zero point whose codes reach from ``low`` to ``high``, zero included."""
    first, last = CODE_RANGES[dtype]
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    scale = max(high - low, _SMALLEST_SPAN) / (last - first)
    return scale, int(np.clip(round(first - low / scale), first, last))


def set_scale(graph: ir.Graph, quantizer: ir.Node, scale: float, zero: int) -> None:
    """New constants for a QuantizeLinear and all that read its codes; others may use the old ones."""
    old_scale, old_zero = (constant_array(value) for value in (quantizer.inputs[1], _zero_point(quantizer)))
    if old_scale is None:
        return
    stem = quantizer.outputs[0].name
    zero_type = np.dtype(np.uint8) if old_zero is None else old_zero.dtype
    new_scale = add_constant(graph, np.full(old_scale.shape, scale, old_scale.dtype), f"{stem}.scale")
    new_zero = add_constant(graph, np.full(old_scale.shape, zero, zero_type), f"{stem}.zero")
    dequantizers = [node for node, _ in readers(quantizer.outputs[0])]
    for node in (quantizer, *dequantizers):
        node.resize_inputs(3)
        node.replace_input_with(1, new_scale)
        node.replace_input_with(2, new_zero)
    for dequantizer in dequantizers:
        for reader, place in readers(dequantizer.outputs[0]):
            if reader.op_type in _BIASED and place == 0:
                _rescale_bias(graph, reader, scale / float(old_scale.reshape(-1)[0]))


def _zero_point(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _rescale_bias(graph: ir.Graph, reader: ir.Node, ratio: float) -> None:
    """Kernels take bias codes to have the scale of input times weight; give them that."""
    holder = made_by(reader.inputs[2], "DequantizeLinear") if len(reader.inputs) > 2 else None
    codes = None if holder is None else constant_array(holder.inputs[0])
    scale = None if holder is None else constant_array(holder.inputs[1])
    if holder is None or codes is None or scale is None or codes.dtype != np.int32:
        return
    value = holder.inputs[0]
    name = f"{value.name if value is not None else reader.name}.rescaled"
    limits = np.iinfo(np.int32)
    moved = np.clip(np.rint(codes.astype(np.float64) / ratio), limits.min, limits.max).astype(np.int32)
    fitted = (scale.astype(np.float64) * ratio).astype(scale.dtype)
    new = ir.node(
        "DequantizeLinear",
        [add_constant(graph, moved, name), add_constant(graph, fitted, f"{name}.scale")],
        {key: attribute.value for key, attribute in holder.attributes.items() if key == "axis"},
        name=f"{name}.dequantize",
    )
    new.outputs[0].name = f"{name}.dequantized"
    graph.insert_before(reader, new)
    reader.replace_input_with(2, new.outputs[0])
