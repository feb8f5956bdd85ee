"""A plan: how a model is made from the variant. Decided stage by stage, always built in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import onnx

from unlag.causes.contract import Dimension, Remedy, find_causes
from unlag.errors import UnlagError
from unlag.model.case import Case
from unlag.model.draft import Draft, open_draft
from unlag.model.variant import Variant
from unlag.observe.align import align_weights
from unlag.rewrites.fold_dequantize import fold_dequantize
from unlag.rewrites.quantize_dynamic import quantize_dynamic
from unlag.rewrites.restore_weights import restore_weights
from unlag.rewrites.widen_float16 import widen_float16

Precision = Literal["as_is", "float32", "dynamic_int8", "dynamic_int8_7bit", "dynamic_int8_tensor"]

PRECISIONS: dict[Precision, str] = {
    "as_is": "weights and activations as the variant has them",
    "float32": "float32 weights, taken from the standard where they are the same",
    "dynamic_int8": "int8 weights by column, activations quantized at run time",
    "dynamic_int8_7bit": "int8 weights by column in 7 bits, activations quantized at run time",
    "dynamic_int8_tensor": "int8 weights by tensor, activations quantized at run time",
}


class Plan(msgspec.Struct, frozen=True):
    """What is done to the variant: rewrites see float32, quantization comes after them, options last."""

    precision: Precision = "as_is"
    remedies: tuple[str, ...] = ()
    """Ids of graph remedies."""
    options: dict[str, str] = {}
    from_standard: bool = False
    """Start from the standard's file instead of the variant's."""

    def with_remedies(self, *ids: str) -> Plan:
        """The plan with these remedies as well."""
        return msgspec.structs.replace(self, remedies=tuple(dict.fromkeys((*self.remedies, *ids))))

    def with_options(self, options: Mapping[str, str]) -> Plan:
        """The plan with these session options set."""
        return msgspec.structs.replace(self, options={**self.options, **options})


def remedies_of(dimension: Dimension) -> dict[str, Remedy]:
    """Applicable remedies of all causes of a dimension, by id, in the order in which they work."""
    causes = [cause for cause in find_causes() if cause.dimension == dimension]
    remedies = [remedy for cause in causes for remedy in cause.remedies if remedy.safety != "ADVICE"]
    return {remedy.id: remedy for remedy in sorted(remedies, key=lambda r: (r.step, r.id))}


def build(plan: Plan, case: Case, path: Path) -> Variant:
    """Make the plan's model and write it to ``path``.

    Raises:
        UsageError: a file can't be read or written, or the quantizer does not take the model.
    """
    source = case.standard if plan.from_standard else case.variant
    draft = open_draft(source, case.standard)
    if plan.precision != "as_is":
        to_float(draft)
    known = remedies_of("graph")
    wanted = set(plan.remedies)
    if not wanted <= set(known):
        raise UnlagError(f"a plan names unknown remedies: {', '.join(sorted(wanted - set(known)))}")
    for identifier, remedy in known.items():
        if identifier in wanted:
            remedy.apply(draft)
    draft.options |= plan.options
    variant = draft.save(path)
    if plan.precision.startswith("dynamic_int8"):
        _quantize(path, plan.precision)
    return variant


def to_float(draft: Draft) -> None:
    """Undo quantization and half precision, and take the standard's own weights where they are the same ones."""
    fold_dequantize(draft.model)
    widen_float16(draft.model)
    restore_weights(draft.model, draft.standard, align_weights(draft.standard, draft.model))


def _quantize(path: Path, precision: Precision) -> None:
    """Quantize a file in place; its float weights are left out of the result."""
    raw = path.with_suffix(".float.onnx")
    path.replace(raw)
    try:
        quantize_dynamic(
            raw,
            path,
            per_channel=precision != "dynamic_int8_tensor",
            reduce_range=precision == "dynamic_int8_7bit",
        )
    finally:
        raw.unlink(missing_ok=True)
    onnx.checker.check_model(path, full_check=False)
