"""A variant being changed: its graph in memory, its options, and the standard to take weights from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import onnx_ir as ir

from unlag.model.graph import read_model, save_model
from unlag.model.variant import Variant


class Observed(msgspec.Struct, frozen=True):
    """What was seen of the variant while it ran: remedies that fix shapes or ranges work from it."""

    input_shapes: dict[str, tuple[int, ...]] = {}
    """Shapes of the workload's inputs, by name."""
    ranges: dict[str, tuple[float, float]] = {}
    """Least and largest value of each float tensor of the variant's file, by name."""
    intended: dict[str, tuple[float, float]] = {}
    """Least and largest value of the standard's tensors that carry the same values, by the variant's names."""
    rms: dict[str, float] = {}
    """Root mean square of the variant's tensors."""
    undone: tuple[str, ...] = ()
    """Activations that the executed graph quantizes and then dequantizes with no kernel in between."""


class Draft(Protocol):
    """The one mutable thing that remedies work on; made anew from the files for every copy."""

    options: dict[str, str]

    def save(self, path: Path) -> Variant:
        """Write the changed model to ``path``, with the suffix of its own format, and describe it as a variant."""
        ...


@dataclass
class OnnxDraft:
    """A draft of an ONNX file."""

    variant: Variant
    model: ir.Model
    standard: ir.Model
    options: dict[str, str] = field(default_factory=dict)
    standard_options: Mapping[str, str] = field(default_factory=dict)
    observed: Observed = field(default_factory=Observed)

    def save(self, path: Path) -> Variant:
        """Write the changed model and describe it as a variant."""
        save_model(self.model, path)
        return Variant(runtime=self.variant.runtime, path=str(path), options=dict(self.options))


def open_draft(variant: Variant, standard: Variant, observed: Observed | None = None) -> OnnxDraft:
    """Read both models anew.

    Raises:
        UsageError: one of them can't be read.
    """
    return OnnxDraft(
        variant=variant,
        model=read_model(Path(variant.path)),
        standard=read_model(Path(standard.path)),
        options=dict(variant.options),
        standard_options=standard.options,
        observed=observed or Observed(),
    )
