"""How well the codes of activations fit what the tensors hold."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from unlag.model.draft import Observed
from unlag.model.facts import GraphIndex
from unlag.rewrites.activation_codes import MOVING, QuantizedActivation, quantized_activations

LOST_SHARE = 0.1
"""Of a tensor's root mean square: the error of clipping is at least this share. Rounding to 8 bits has about 0.01."""
FEWEST_CODES = 32
"""An eighth of what 8 bits have."""
WIDE_SQNR_DB = 30.0
"""A tensor on few codes that still gets this is left alone: 8 bits give 30 to 40."""
LOWEST_SQNR_DB = 20.0
"""An error of a tenth of the signal."""

_FIXED_RANGE = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh"})
"""Operators whose codes rightly cover what they can give, not what they gave."""
_BEFORE_SOFTMAX = MOVING | {"Add", "Sub", "Mul", "Div", "Where", "QuantizeLinear", "DequantizeLinear"}
_LONGEST_WALK = 12

Fault = Literal["clipped", "wide", "rounded"]


class Judgement(msgspec.Struct, frozen=True):
    """One quantized activation, and what is wrong with its codes, if anything."""

    activation: QuantizedActivation
    fault: Fault | None
    amount: float
    """Share of the root mean square that is lost or lies at the end (clipped), codes in use (wide), or decibels."""


def judge_activations(index: GraphIndex, seen: Observed) -> list[Judgement]:
    """Judge every activation in QDQ form of the file's graph that was observed."""
    return [
        _judge(index, activation, readbacks, seen)
        for activation in quantized_activations(index)
        if (readbacks := readbacks_of(index, activation))
        and activation.tensor in seen.ranges
        and all(name in seen.rms for name in (activation.tensor, *readbacks))
    ]


def readbacks_of(index: GraphIndex, activation: QuantizedActivation) -> list[str]:
    """Outputs of the DequantizeLinear nodes, where nothing else reads the codes."""
    readers = index.consumers.get(activation.codes, [])
    only = all(r.op_type == "DequantizeLinear" and r.inputs[0] == activation.codes for r in readers)
    return [reader.outputs[0] for reader in readers] if only else []


def _judge(index: GraphIndex, activation: QuantizedActivation, readbacks: list[str], seen: Observed) -> Judgement:
    low, high = seen.ranges[activation.tensor]
    kept = min(seen.rms[name] for name in readbacks)
    held = kept if activation.is_one_sided else seen.rms[activation.tensor]
    sqnr_db = activation.sqnr_db(held)
    lost = _lost_share(index, activation, kept, seen)
    if lost > LOST_SHARE and not any(_is_meant(activation, seen.intended.get(name)) for name in readbacks):
        return Judgement(activation, "clipped", lost)
    producer = index.producer(activation.tensor)
    if held == 0 or (producer is not None and producer.op_type in _FIXED_RANGE):
        return Judgement(activation, None, sqnr_db)
    span = min(max(high, 0.0), activation.high) - max(min(low, 0.0), activation.low)
    codes = span / activation.scale if activation.scale > 0 else math.inf
    if codes < FEWEST_CODES and sqnr_db < WIDE_SQNR_DB:
        return Judgement(activation, "wide", codes)
    # Codes that cut off what is below zero do a Relu's work, which floats would not.
    is_plain = not activation.is_one_sided or low >= activation.low - activation.scale
    return Judgement(activation, "rounded" if sqnr_db < LOWEST_SQNR_DB and is_plain else None, sqnr_db)


def _is_meant(activation: QuantizedActivation, span: tuple[float, float] | None) -> bool:
    """Whether the standard's tensor ends where the codes do: a Clip that the codes took over."""
    return span is not None and activation.low <= span[0] + activation.scale and span[1] <= activation.high * 1.01


def _lost_share(index: GraphIndex, activation: QuantizedActivation, kept: float, seen: Observed) -> float:
    """Least share of the root mean square that clipping took; zero where nothing reaches beyond the codes.

    ‖x − y‖ ≥ ‖x‖ − ‖y‖. What codes without negative numbers cut off at zero is a Relu that they took over, so these
    are judged by how much of what is left lies at the upper end.
    """
    low, high = seen.ranges[activation.tensor]
    above = high > activation.high + activation.scale
    if activation.is_one_sided:
        return kept / activation.high if high > 2 * activation.high and kept > activation.high / 3 else 0.0
    below = low < activation.low - activation.scale and not _goes_to_softmax(index, activation.tensor)
    held = seen.rms[activation.tensor]
    return 1 - kept / held if held > 0 and (above or below) else 0.0


def _goes_to_softmax(index: GraphIndex, tensor: str) -> bool:
    """Whether the tensor ends in a Softmax, where values far below the others are zeros at any rate: masks."""
    waiting, seen = [(tensor, 0)], {tensor}
    while waiting:
        name, steps = waiting.pop()
        for reader in index.consumers.get(name, []):
            if reader.op_type == "Softmax":
                return True
            if reader.op_type in _BEFORE_SOFTMAX and steps < _LONGEST_WALK:
                new = [out for out in reader.outputs if out not in seen]
                seen.update(new)
                waiting += [(out, steps + 1) for out in new]
    return False
