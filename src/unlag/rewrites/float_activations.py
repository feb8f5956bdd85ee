"""Activations that 8 bits are too coarse for become floats again."""

from __future__ import annotations

import onnx_ir as ir

from unlag.model.draft import Observed
from unlag.model.facts import GraphIndex, facts_of
from unlag.rewrites.activation_fit import judge_activations
from unlag.rewrites.remove_quantize_pairs import remove_quantize_pairs


def float_activations(model: ir.Model, seen: Observed) -> int:
    """Take the quantize-dequantize pairs off the activations whose rounding errors are a tenth of the signal or more.

    Works in QDQ form, on what was seen of the tensors; weights keep their codes. Gives the number of pairs that were
    taken away.
    """
    judged = judge_activations(GraphIndex(facts_of(model)), seen)
    return remove_quantize_pairs(model, {j.activation.tensor for j in judged if j.fault == "rounded"})
