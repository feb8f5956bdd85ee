"""Inputs of any size that get the size they are used with."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir


def fix_dimensions(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """x: [batch, sequence] becomes x: [1, 128], as ``shapes`` says by input name; the number of inputs that changed.

    Inputs of another rank, or with a fixed dimension of another size, are left alone. Outputs keep the shapes that
    they declare: those hold for every size.
    """
    graph = model.graph
    return sum(_fix(value, shapes.get(str(value.name))) for value in graph.inputs if value.const_value is None)


def _fix(value: ir.Value, wanted: tuple[int, ...] | None) -> bool:
    if value.shape is None or wanted is None or len(value.shape) != len(wanted):
        return False
    sizes = [d if isinstance(d, int) else None for d in value.shape]
    if None not in sizes or any(size not in (None, given) for size, given in zip(sizes, wanted, strict=True)):
        return False
    value.shape = ir.Shape(wanted)
    return True
