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


def infect(model: ir.Model) -> int:
    """The model as it is: in how many places the standard is fused."""
    return fuse_attention(model.clone())


def standardize(model: ir.Model) -> int:
    """One operator for each attention block."""
    return fuse_attention(model)
