import onnx_ir as ir

from planting import Pair, cnn_feed, tiny_bert, tiny_cnn

FUSIONS = "ConvActivationFusion+NchwcTransformer"
VARIANT_OPTIONS = {"disable": FUSIONS}


def plant() -> Pair:
    return Pair(tiny_cnn(), {}, tiny_cnn(), VARIANT_OPTIONS, feed=cnn_feed())


def twin() -> Pair:
    """A pass is off that has nothing to do in this model."""
    return Pair(tiny_bert(), {}, tiny_bert(), {"disable": "NchwcTransformer"})


def infect(model: ir.Model) -> int:
    """Nothing in the model: ``VARIANT_OPTIONS`` switch passes off that convolutions need; others lose little."""
    return sum(node.op_type == "Conv" for node in model.graph)
