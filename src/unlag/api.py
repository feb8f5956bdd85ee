"""The Python interface: the commands as functions, with the same names and defaults as the options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack, cast, get_args

from unlag import pipeline
from unlag.errors import UsageError, did_you_mean
from unlag.measure.comparison import Comparison
from unlag.measure.progress import Progress, silent
from unlag.model.case import Case, Objective, Target
from unlag.model.variant import Variant, parse_spec
from unlag.model.workload import Shape, parse_shape
from unlag.observe.evidence import Claim
from unlag.proof.explain import Extent
from unlag.proof.explanation import Explanation
from unlag.stages.fixed import Fix

__all__ = ["CaseOptions", "compare", "explain", "fix", "make_case", "make_extent"]

FEWEST_ROUNDS = 2
"""One round has no spread, so no interval."""


class CaseOptions(TypedDict, total=False):
    """What a case may be told beside its two variants; each has the default of the option of that name."""

    workload: str
    shapes: str
    dims: Mapping[str, int]
    rounds: int
    max_rounds: int | None
    threads: int | None
    seed: int
    patience_s: float
    accuracy_budget: float
    strict_accuracy: bool
    objective: str
    target: str
    any_runtime: bool


def compare(
    standard: str | Path | Variant,
    variant: str | Path | Variant,
    *,
    progress: Progress = silent,
    **options: Unpack[CaseOptions],
) -> Comparison:
    """Measure whether the variant is slower or less accurate than the standard."""
    return pipeline.compare(make_case(standard, variant, **options), progress)


def explain(
    standard: str | Path | Variant,
    variant: str | Path | Variant,
    *,
    progress: Progress = silent,
    extent: Extent | None = None,
    **options: Unpack[CaseOptions],
) -> Explanation:
    """Measure, and prove which causes the difference has; ``make_extent`` says how far to go."""
    return pipeline.explain(make_case(standard, variant, **options), progress, extent=extent)


def fix(
    standard: str | Path | Variant,
    variant: str | Path | Variant | None,
    output: str | Path,
    *,
    progress: Progress = silent,
    resume: bool = False,
    **options: Unpack[CaseOptions],
) -> Fix:
    """Measure, explain, and write a model that doesn't lag into the folder ``output``.

    Without a variant the standard itself is made better; ``resume`` goes on from what an interrupted fix has measured.
    """
    case = make_case(standard, standard if variant is None else variant, **options)
    return pipeline.fix(case, Path(output), progress, resume=resume)


def make_extent(
    *,
    quick: bool = False,
    graft: bool = False,
    claim_standard_ms: float | None = None,
    claim_variant_ms: float | None = None,
) -> Extent:
    """How far an explanation goes: diagnosis only, grafts of all blocks, the user's own times.

    Raises:
        UsageError: a claimed time makes no sense, or something has to be measured without measuring.
    """
    claimed = {"claim_standard_ms": claim_standard_ms, "claim_variant_ms": claim_variant_ms}
    for name, value in claimed.items():
        if value is not None:
            _finite(value, name, above_zero=True)
    given = [name for name, value in claimed.items() if value is not None]
    measuring = [*(["graft"] if graft else []), *given]
    if quick and measuring:
        raise UsageError(f"{measuring[0]} has to measure and quick only diagnoses: leave one of them out")
    return Extent(quick=quick, graft=graft, claim=Claim(claim_standard_ms, claim_variant_ms) if given else None)


def make_case(standard: str | Path | Variant, variant: str | Path | Variant, **options: Unpack[CaseOptions]) -> Case:
    """Check what was asked for and put it together.

    Raises:
        UsageError: a spec, a shape or a number makes no sense.
    """
    unknown = sorted(set(options) - set(CaseOptions.__annotations__))
    if unknown:
        known = list(CaseOptions.__annotations__)
        hint = did_you_mean(unknown[0], known, f"options: {', '.join(known)}")
        raise UsageError(f"there is no option {unknown[0]!r}", hint=hint)
    rounds = _at_least(FEWEST_ROUNDS, options.get("rounds", 5), "rounds")
    asked = options.get("max_rounds")
    threads = options.get("threads")
    if asked is not None and asked < rounds:
        raise UsageError(f"max_rounds is {asked}, fewer than the {rounds} rounds that are wanted")
    return Case(
        standard=_variant(standard),
        variant=_variant(variant),
        workload=options.get("workload", "random"),
        shapes=_shapes(options.get("shapes", "1x128")),
        dims={name: _at_least(1, size, f"dim {name}") for name, size in options.get("dims", {}).items()},
        rounds=rounds,
        max_rounds=5 * rounds if asked is None else asked,
        threads=None if threads is None else _at_least(1, threads, "threads"),
        seed=_at_least(0, options.get("seed", 0), "seed"),
        accuracy_budget=_finite(options.get("accuracy_budget", 0.5), "accuracy_budget"),
        strict_accuracy=options.get("strict_accuracy", False),
        objective=_objective(options.get("objective", "latency")),
        target=_target(options.get("target", "cpu")),
        any_runtime=options.get("any_runtime", False),
        patience_s=_finite(options.get("patience_s", 120.0), "patience", above_zero=True),
    )


def _variant(given: str | Path | Variant) -> Variant:
    variant = given if isinstance(given, Variant) else _from_path(given)
    try:
        variant.spec.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{variant.spec!r} is not valid UTF-8: rename the file") from error
    return variant


def _from_path(given: str | Path) -> Variant:
    return Variant(runtime="onnxruntime", path=str(given)) if isinstance(given, Path) else parse_spec(given)


def _shapes(text: str) -> tuple[Shape, ...]:
    shapes = tuple(parse_shape(part.strip()) for part in text.split(","))
    if len(set(shapes)) < len(shapes):
        raise UsageError(f"{text!r} names a shape twice")
    return shapes


def _objective(text: str) -> Objective:
    if text not in get_args(Objective):
        known = get_args(Objective)
        hint = did_you_mean(text, known, f"objectives: {', '.join(known)}")
        raise UsageError(f"there is no objective {text!r}", hint=hint)
    return cast("Objective", text)


def _target(text: str) -> Target:
    if text not in get_args(Target):
        known = get_args(Target)
        raise UsageError(f"there is no target {text!r}", hint=did_you_mean(text, known, f"targets: {', '.join(known)}"))
    return cast("Target", text)


def _at_least(least: int, value: int, name: str) -> int:
    if value < least:
        raise UsageError(f"{name} is {value}; it must be at least {least}")
    return value


def _finite(value: float, name: str, *, above_zero: bool = False) -> float:
    if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
        raise UsageError(f"{name} is {value}; it must be a finite number {'above' if above_zero else 'of at least'} 0")
    return value
