"""No ``infect``: on small activations ONNX Runtime's fused kernel is slower than the two that it replaces, so that
a variant with the two apart costs no time. ``slow_residual_fusion`` plants the opposite.
"""

import onnx
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.rewrites.fuse_skip_layer_norm import fuse_skip_layer_norm


def plant() -> Pair:
    return Pair(_fused(), {}, tiny_bert(), {})


def twin() -> Pair:
    """More fused than the standard."""
    return Pair(tiny_bert(), {}, _fused(), {})


def _fused() -> onnx.ModelProto:
    model = editable(tiny_bert())
    fuse_skip_layer_norm(model)
    return ir.to_proto(model)
