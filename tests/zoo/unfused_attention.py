import onnx_ir as ir

from planting import Pair, editable, flash, tiny_bert
from unlag.rewrites.fuse_attention import fuse_attention


def plant() -> Pair:
    return Pair(tiny_bert(), {}, flash(segmented_qkv=True), {})


def twin() -> Pair:
    """More fused than the standard."""
    model = editable(tiny_bert())
    fuse_attention(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})
