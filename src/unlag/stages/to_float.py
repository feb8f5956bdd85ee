"""A draft's numbers taken back to float32, whatever somebody has quantized them to."""

from __future__ import annotations

from unlag.model.draft import OnnxDraft
from unlag.observe.align import align_weights
from unlag.rewrites.float_products import float_products, float_recurrences
from unlag.rewrites.fold_dequantize import fold_dequantize
from unlag.rewrites.restore_weights import restore_weights
from unlag.rewrites.spell_quantized import spell_quantized
from unlag.rewrites.strip_quantization import strip_quantization
from unlag.rewrites.widen_float16 import widen_float16


def to_float(draft: OnnxDraft) -> None:
    """Undo quantization and half precision, and take the standard's own weights where they are the same ones.

    Integer operators become float ones first, then nothing reads codes any more, and what quantized and dequantized
    activations goes. Without a standard that has them, weights are what their codes stand for.
    """
    model = draft.model
    float_products(model)
    float_recurrences(model)
    spell_quantized(model)
    strip_quantization(model, had_relu=_may_have_relu(draft))
    fold_dequantize(model)
    widen_float16(model)
    restore_weights(model, draft.standard, align_weights(draft.standard, model))


def _may_have_relu(draft: OnnxDraft) -> bool:
    """Whether a quantizer may have left one out: the standard knows, unless it was quantized itself."""
    kinds = {node.op_type for node in draft.standard.graph}
    return not kinds.isdisjoint({"Relu", "Clip", "QuantizeLinear"}) or any(kind.startswith("QLinear") for kind in kinds)
