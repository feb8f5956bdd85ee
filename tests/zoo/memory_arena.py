import onnx_ir as ir

from planting import Pair, cnn_feed, tiny_cnn

VARIANT_OPTIONS = {"arena": "off", "config.session.disable_prepacking": "1"}


def plant() -> Pair:
    return Pair(tiny_cnn(), {}, tiny_cnn(), VARIANT_OPTIONS, feed=cnn_feed())


def twin() -> Pair:
    """No arena on both sides; the variant has what the standard does without."""
    return Pair(tiny_cnn(), {"arena": "off", "memory_pattern": "off"}, tiny_cnn(), {"arena": "off"}, feed=cnn_feed())


def infect(model: ir.Model) -> int:
    """Nothing in the model: ``VARIANT_OPTIONS`` take the arena and the packed weights of matrix products away."""
    return sum(node.op_type in {"MatMul", "Gemm", "LSTM", "GRU"} for node in model.graph)
