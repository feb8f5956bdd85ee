"""Schemes: the numbers in which a layer's weight is stored, and those in which it is computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from unlag.rewrites.quantize_static import Calibration

Precision = Literal[
    "as_is", "float32", "float16", "weight_int8", "blocks_int8", "dynamic_int8", "dynamic_uint8", "dynamic_int8_7bit",
    "dynamic_int8_tensor", "static_int8", "static_int8_percentile", "static_int8_entropy", "static_int8_7bit",
    "static_int8_tensor", "blocks_int4",
]  # fmt: skip

Family = Literal["float", "half", "weights", "blocks", "dynamic", "static"]

Kind = Literal["product", "attention", "convolution", "recurrence", "table"]
"""Matrix product by a constant, attention with packed projections, convolution, LSTM, table that rows are taken of."""


class Scheme(msgspec.Struct, frozen=True):
    """One way to store and compute a layer."""

    name: Precision
    family: Family
    words: str
    by_column: bool = True
    """A scale for each column or channel of the weight, and not one for all of it."""
    seven_bits: bool = False
    unsigned: bool = False
    calibration: Calibration | None = None
    bits: int = 8


_ALL = (
    Scheme("float32", "float", "float32", bits=32),
    Scheme("float16", "half", "float16", bits=16),
    Scheme("weight_int8", "weights", "int8 on disk, float32 from loading on"),
    Scheme("blocks_int8", "blocks", "8 bits in blocks of 32"),
    Scheme("dynamic_int8", "dynamic", "dynamic int8 by column"),
    Scheme("dynamic_uint8", "dynamic", "dynamic uint8 by column", unsigned=True),
    Scheme("dynamic_int8_7bit", "dynamic", "dynamic int8 by column in 7 bits", seven_bits=True),
    Scheme("dynamic_int8_tensor", "dynamic", "dynamic int8 by tensor", by_column=False),
    Scheme("static_int8", "static", "static int8 by column", calibration="minmax"),
    Scheme("static_int8_percentile", "static", "static int8 by column, ranges by percentile", calibration="percentile"),
    Scheme("static_int8_entropy", "static", "static int8 by column, ranges by entropy", calibration="entropy"),
    Scheme("static_int8_7bit", "static", "static int8 by column in 7 bits", calibration="minmax", seven_bits=True),
    Scheme("static_int8_tensor", "static", "static int8 by tensor", by_column=False, calibration="minmax"),
    Scheme("blocks_int4", "blocks", "4 bits in blocks of 32", bits=4),
)
SCHEMES: dict[Precision, Scheme] = {scheme.name: scheme for scheme in _ALL}
"""From the most careful to the coarsest."""

PRECISIONS: dict[Precision, str] = {
    "as_is": "weights and activations as the variant has them",
    **{name: scheme.words for name, scheme in SCHEMES.items()},
}

_FITTING: dict[Kind, tuple[Family, ...]] = {
    "product": ("float", "half", "weights", "blocks", "dynamic", "static"),
    "attention": ("float", "half", "weights", "dynamic"),
    "convolution": ("float", "half", "weights", "dynamic", "static"),
    "recurrence": ("float", "half", "dynamic"),
    "table": ("float", "half", "dynamic"),
}
"""The families that each kind of layer has an operator for."""

_INSTEAD: dict[Kind, dict[Family, Precision]] = {
    "attention": {"blocks": "weight_int8", "static": "dynamic_int8"},
    "convolution": {"blocks": "weight_int8"},
    "recurrence": {"weights": "float32", "blocks": "float32", "static": "dynamic_int8"},
    "table": {"weights": "dynamic_int8", "blocks": "dynamic_int8", "static": "dynamic_int8"},
}
"""What a layer gets where it has no operator of the scheme's family."""


def fitting(precision: Precision, kind: Kind) -> Precision:
    """The scheme itself, or the one that a layer of this kind gets in its place."""
    family = SCHEMES[precision].family
    return precision if family in _FITTING[kind] else _INSTEAD[kind][family]


def most_careful(precisions: Iterable[Precision]) -> Precision:
    """The one that loses least, as a rule: what a layer gets that is packed of several."""
    order = list(SCHEMES)
    return min(precisions, key=order.index)
