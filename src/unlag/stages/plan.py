"""A plan: how a model is made from the variant. Decided stage by stage, always built in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from unlag.causes.contract import Dimension, Remedy, find_causes
from unlag.errors import UnlagError
from unlag.model.case import Case
from unlag.model.draft import Observed, OnnxDraft, open_draft
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.model.workload import Feed
from unlag.rewrites.narrow_floats import DELICATE, narrow_floats
from unlag.runtimes.contract import find_runtime
from unlag.stages.layers import find_layers
from unlag.stages.quantize import Schemes, prepare, run_passes
from unlag.stages.schemes import PRECISIONS, Precision
from unlag.stages.to_float import to_float

__all__ = ["PRECISIONS", "Plan", "Precision", "build", "remedies_of", "to_float"]


class Plan(msgspec.Struct, frozen=True):
    """What is done to the variant: rewrites see float32, quantization comes after them, options last."""

    precision: Precision = "as_is"
    remedies: tuple[str, ...] = ()
    """Ids of graph remedies."""
    options: dict[str, str] = {}
    from_standard: bool = False
    """Start from the standard's file instead of the variant's."""
    layers: dict[str, Precision] = {}
    """Layers that have another scheme than ``precision``, by the names of their weights in the standard. Float16 is for
    whole graphs only."""

    runtime: str = ""
    """Where the model runs; nothing means in the runtime of what it starts from."""
    recipe: str = ""
    """What that runtime's own tools make of the model, by the name that ``Runtime.recipes`` has for it."""

    def with_precision(self, precision: Precision, layers: Schemes | None = None) -> Plan:
        """The plan with these schemes in place of all that it has."""
        others = {name: (layers or {})[name] for name in sorted(layers or {}) if (layers or {})[name] != precision}
        return msgspec.structs.replace(self, precision=precision, layers=others)

    def with_remedies(self, *ids: str) -> Plan:
        """The plan with these remedies as well."""
        return msgspec.structs.replace(self, remedies=tuple(dict.fromkeys((*self.remedies, *ids))))

    def with_options(self, options: Mapping[str, str]) -> Plan:
        """The plan with these session options set."""
        return msgspec.structs.replace(self, options={**self.options, **options})


def remedies_of(*dimensions: Dimension, runtime: str = DEFAULT_RUNTIME) -> dict[str, Remedy[Any]]:
    """Applicable remedies of all causes of these dimensions in a runtime, by id, in the order in which they work."""
    causes = [c for c in find_causes() if runtime in c.runtimes and c.dimension in dimensions]
    remedies = [remedy for cause in causes for remedy in cause.remedies if remedy.safety != "ADVICE"]
    return {remedy.id: remedy for remedy in sorted(remedies, key=lambda r: (r.step, r.id))}


EDITING: tuple[Dimension, ...] = ("quantization", "graph", "hardware")
"""Dimensions whose remedies a plan may name."""


def start(plan: Plan, case: Case, observed: Observed | None = None) -> OnnxDraft:
    """What the plan's remedies work on: the variant or the standard, in floats unless it is to stay as it is."""
    source = case.standard if plan.from_standard else case.variant
    if plan.from_standard and observed is not None:
        observed = Observed(input_shapes=observed.input_shapes)  # the rest was seen of the variant
    draft = open_draft(source, case.standard, observed)
    if plan.precision != "as_is":
        to_float(draft)
    return draft


def build(  # noqa: PLR0913 - a model is made from these
    plan: Plan,
    case: Case,
    path: Path,
    *,
    observed: Observed | None = None,
    current: Plan | None = None,
    feeds: Sequence[Feed] = (),
) -> Variant:
    """Make the plan's model and write it to ``path``.

    Args:
        plan: what to make.
        case: the variants to start from.
        path: where the model goes.
        observed: what was seen of the variant while it ran.
        current: the plan that this one is a change of.
        feeds: runs that static scales are calibrated on.

    Raises:
        UsageError: a file can't be read or written, or a quantizer does not take the model.
        UnlagError: what the plan has more than the current one changes nothing.
    """
    source = case.standard if plan.from_standard else case.variant
    if source.runtime != DEFAULT_RUNTIME:
        return _build_native(plan, source, _Order(case, path, observed, feeds))
    if plan.runtime:
        return _move(plan, source, _Order(case, path, observed, feeds))
    draft = start(plan, case, observed)
    known = remedies_of(*EDITING)
    wanted = set(plan.remedies)
    if not wanted <= set(known):
        raise UnlagError(f"a plan names unknown remedies: {', '.join(sorted(wanted - set(known)))}")
    changed = {name: remedy.apply(draft) for name, remedy in known.items() if name in wanted}
    if current is not None and msgspec.structs.replace(plan, remedies=current.remedies) == current:
        new = wanted - set(current.remedies)
        if new and not any(changed[name] for name in new):
            raise UnlagError("nothing to change in this model")
    draft.options |= plan.options
    if plan.precision == "as_is":
        return draft.save(path)
    if plan.precision == "float16":
        draft.model, _products = narrow_floats(draft.model, "float16", DELICATE)
        return draft.save(path)
    passes = prepare(draft.model, find_layers(draft.model, draft.standard), plan.precision, plan.layers)
    variant = draft.save(path)
    del draft  # both models: what quantizes needs their memory
    try:
        run_passes(path, passes, feeds)
    except UnlagError:
        path.unlink(missing_ok=True)
        raise
    return variant


@dataclass(frozen=True)
class _Order:
    """What a model is made from beside its plan."""

    case: Case
    path: Path
    observed: Observed | None
    feeds: Sequence[Feed]


def _move(plan: Plan, source: Variant, order: _Order) -> Variant:
    """The plan's ONNX file in another runtime, or what that runtime's tools make of it."""
    here = msgspec.structs.replace(plan, runtime="", recipe="", options={})
    if here == Plan(from_standard=plan.from_standard):
        made = source
    else:
        made = build(here, order.case, order.path, observed=order.observed, feeds=order.feeds)
    moved = Variant(plan.runtime, made.path)
    if plan.recipe:
        moved = find_runtime(plan.runtime).recipes()[plan.recipe](moved, order.feeds, order.path)
    return moved.with_options(**plan.options)


def _build_native(plan: Plan, source: Variant, order: _Order) -> Variant:
    """A model of another runtime's own format: what its tools make of the source, then its own causes' remedies."""
    runtime = find_runtime(source.runtime)
    made = runtime.recipes()[plan.recipe](source, order.feeds, order.path) if plan.recipe else source
    if plan.remedies:
        draft = runtime.open_draft(made, order.case.standard, order.observed)
        known = remedies_of(*EDITING, runtime=source.runtime)
        changed = [remedy.apply(draft) for name, remedy in known.items() if name in plan.remedies]
        if not any(changed):
            raise UnlagError("nothing to change in this model")
        made = draft.save(order.path.with_stem(f"{order.path.stem}_mended"))
    return made.with_options(**plan.options)
