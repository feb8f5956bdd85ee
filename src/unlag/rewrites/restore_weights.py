"""Float weights taken back from the standard, where the variant's went through quantization."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, sweep
from unlag.rewrites.requantize_weights import Source
from unlag.rewrites.stored_weights import read_weights


def restore_weights(model: ir.Model, standard: ir.Model, weights: Mapping[str, Source]) -> int:
    """W' ≈ W becomes W: each float matrix of the model gets the standard's values of the same columns.

    ``weights`` says where the standard keeps what the model reads, by the name of the value that is read. Weights that
    are still stored as codes are left alone, and so are those that hold the standard's values already.
    """
    originals = {str(weight.read.name): weight for weight in read_weights(standard)}
    changed = 0
    for weight in list(read_weights(model)):
        source = weights.get(str(weight.read.name))
        original = originals.get(source.name) if source is not None else None
        stored = constant_array(weight.read)
        if source is None or original is None or stored is None or stored.dtype != np.float32:
            continue
        matrix = original.matrix()
        if matrix is None:
            continue
        values = matrix[:, source.start : source.stop].astype(np.float32)
        values = values.T if weight.transposed else values
        if values.shape != stored.shape or np.array_equal(values, stored):
            continue
        constant = add_constant(model.graph, np.ascontiguousarray(values), f"{weight.read.name}.restored")
        for reader, index in list(weight.read.uses()):
            reader.replace_input_with(index, constant)
        changed += 1
    if changed:
        sweep(model)
    return changed
