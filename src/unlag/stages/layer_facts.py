"""What is measured of single layers: times of real kernels at real shapes, and errors of real codes on real inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from unlag.stages.fixed import Rejected
from unlag.stages.layers import Layer
from unlag.stages.schemes import Precision

SAME_KERNEL: dict[Precision, tuple[Precision, ...]] = {
    "dynamic_int8": ("dynamic_int8_7bit",),
    "static_int8": ("static_int8_7bit", "static_int8_percentile", "static_int8_entropy"),
}
"""Schemes that differ in their codes only from one that is timed."""


class LayerFacts(msgspec.Struct, frozen=True):
    """Layers of a model, with the times and errors of those schemes that were looked at."""

    layers: tuple[Layer, ...]
    """All but tables, in the graph's order."""
    places: dict[str, str]
    """Shapes of input and weight of each layer, in words."""
    times_ms: dict[Precision, dict[str, float]]
    """Of one run of each layer, what quantizing and scaling add counted in."""
    failed: tuple[Rejected, ...] = ()
    """Schemes that could not be built or run."""
    errors: dict[Precision, dict[str, float]] = {}
    """Root mean square error of each layer's result over that of the result."""

    def total_ms(self, precision: Precision) -> float:
        """Time of all layers in one scheme."""
        return sum(self.times_ms[precision].values())

    def error(self, precision: Precision) -> float:
        """Root mean square of the layers' errors; infinite where they were not measured."""
        if precision == "float32":
            return 0.0
        errors = self.errors.get(precision)
        return math.sqrt(mean(e * e for e in errors.values())) if errors else math.inf

    def with_twins(self, twins: Mapping[Precision, Sequence[Precision]]) -> LayerFacts:
        """The facts with the times of schemes that have the kernels of others."""
        known = {twin: self.times_ms[name] for name, same in twins.items() if name in self.times_ms for twin in same}
        return msgspec.structs.replace(self, times_ms={**self.times_ms, **known})

    @property
    def schemes(self) -> tuple[Precision, ...]:
        """Those that were timed, other than float32."""
        return tuple(name for name in self.times_ms if name != "float32")


def mean(numbers: Iterable[float]) -> float:
    """Of at least one number."""
    held = list(numbers)
    return sum(held) / len(held)
