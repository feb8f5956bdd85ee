"""How the fixed model is used best: with which inputs, in batches by length, in how many replicas."""

from __future__ import annotations

import msgspec

from unlag.errors import UnlagError
from unlag.measure.bench import Bench, inspect
from unlag.model.variant import Variant
from unlag.model.workload import Signature
from unlag.stages.fixed import Fix, Lengths, Throughput
from unlag.stages.lengths import measure_lengths
from unlag.stages.throughput import measure_throughput


def with_use(bench: Bench, fix: Fix, variant: Variant) -> Fix:
    """The record with what was measured of the model that goes out: padding, and rows a second where these count."""
    notes = [*fix.notes, *_only_shape(bench, variant)]
    lengths: Lengths | None = None
    throughput: Throughput | None = None
    try:
        lengths = measure_lengths(bench.within(0.0, 0.4), variant)
    except UnlagError as error:
        notes.append(f"what padding costs could not be measured: {error.message}")
    if bench.case.objective == "throughput" and fix.result is not None:
        try:
            throughput = measure_throughput(bench.within(0.4, 1.0), variant, fix.result)
            notes += _said(throughput)
        except UnlagError as error:
            notes.append(f"rows a second could not be measured: {error.message}")
    return msgspec.structs.replace(fix, lengths=lengths, throughput=throughput, notes=tuple(notes))


def _only_shape(bench: Bench, variant: Variant) -> list[str]:
    """A warning, where inputs' dimensions were fixed on the way."""
    fixed = inspect(variant).signature
    if _free(fixed) or not _free(inspect(bench.case.standard).signature):
        return []
    inputs = ", ".join(f"{info.name} [{', '.join(map(str, info.shape or ()))}]" for info in fixed.inputs)
    return [f"the fixed model takes inputs of one shape only, {inputs}: fix it again with --shapes for another one"]


def _free(signature: Signature) -> bool:
    """Whether any dimension of an input is free."""
    return any(not isinstance(size, int) for info in signature.inputs for size in info.shape or ())


def _said(throughput: Throughput | None) -> list[str]:
    """What the report begins with, where rows a second are not as they should be."""
    if throughput is None:
        return ["rows a second could not be measured: no way to share out the cores fits into memory"]
    if throughput.gain.high < 1:
        more = 1 / throughput.gain.estimate
        return [f"used as well as the fixed model, the standard gets {more:.2f} times as many rows a second"]
    return []
