"""Activations as integer codes, in a graph's facts: who quantizes them, how fine, and who undoes it at once."""

from __future__ import annotations

import math

import msgspec

from unlag.model.facts import GraphIndex, Node

CODE_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}
"""Least and largest code of each element type that activations are quantized to."""

MOVING = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather", "Expand", "Identity"}
)
"""Operators that carry codes from place to place as they are."""

_STEP_VARIANCE = 1 / 12
"""Mean square error of rounding to whole steps, in steps squared."""


class QuantizedActivation(msgspec.Struct, frozen=True):
    """A float tensor that one QuantizeLinear makes codes of, with one scale for all of it."""

    tensor: str
    codes: str
    scale: float
    zero: int
    dtype: str

    @property
    def low(self) -> float:
        """Least number that a code stands for."""
        return (CODE_RANGES[self.dtype][0] - self.zero) * self.scale

    @property
    def high(self) -> float:
        """Largest number that a code stands for."""
        return (CODE_RANGES[self.dtype][1] - self.zero) * self.scale

    @property
    def is_one_sided(self) -> bool:
        """Whether no code stands for a negative number: what quantizers make of a Relu, which they then take out."""
        return self.low >= 0

    def sqnr_db(self, rms: float) -> float:
        """Signal-to-noise ratio of rounding a tensor of that root mean square, in decibels; infinite without signal."""
        if rms <= 0 or self.scale <= 0:
            return math.inf
        return 10 * math.log10(rms**2 / (_STEP_VARIANCE * self.scale**2))


def quantized_activations(index: GraphIndex) -> list[QuantizedActivation]:
    """Every activation of the main graph that QuantizeLinear reads with constant scale and zero point."""
    found = (quantized_by(index, node) for node in index.facts.nodes if node.depth == 0)
    return [activation for activation in found if activation is not None]


def quantized_by(index: GraphIndex, node: Node) -> QuantizedActivation | None:
    """What a QuantizeLinear quantizes; nothing for weights, several scales, and other operators."""
    if node.op_type != "QuantizeLinear" or index.constant(node.inputs[0]) is not None:
        return None
    scale = index.scalar(node.inputs[1])
    zero_name = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = index.constant(zero_name) if zero_name else None
    offset = 0.0 if not zero_name else index.scalar(zero_name)
    if scale is None or offset is None or (not zero_name and "output_dtype" in node.attributes):
        return None
    dtype = "uint8" if zero is None else zero.dtype
    if dtype not in CODE_RANGES:
        return None
    return QuantizedActivation(tensor=node.inputs[0], codes=node.outputs[0], scale=scale, zero=int(offset), dtype=dtype)


def undone_quantizations(index: GraphIndex) -> tuple[str, ...]:
    """Activations of the main graph whose codes are only turned back into floats: no kernel computes from them."""
    return tuple(
        node.inputs[0]
        for node in index.facts.nodes
        if node.op_type == "QuantizeLinear"
        and node.depth == 0
        and index.constant(node.inputs[0]) is None
        and _is_undone(index, node.outputs[0])
    )


def _is_undone(index: GraphIndex, codes: str) -> bool:
    """Whether the codes, moved or not, end in DequantizeLinear nodes, and nowhere else."""
    waiting, dequantized = [codes], False
    while waiting:
        name = waiting.pop()
        for reader in index.consumers.get(name, []):
            if reader.op_type == "DequantizeLinear" and reader.inputs[0] == name:
                dequantized = True
            elif reader.op_type in MOVING and reader.inputs[0] == name:
                waiting += reader.outputs
            else:
                return False
    return dequantized
