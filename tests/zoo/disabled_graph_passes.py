import onnx_ir as ir

from planting import OFF, Pair, tiny_bert

VARIANT_OPTIONS = OFF


def plant() -> Pair:
    return Pair(tiny_bert(), {}, tiny_bert(), OFF)


def twin() -> Pair:
    """A level below ``all`` on both sides."""
    return Pair(tiny_bert(), {"optimization": "extended"}, tiny_bert(), {"optimization": "extended"})


def infect(_model: ir.Model) -> int:
    """Nothing in the file: the option is all of it, in the one place that there is."""
    return 1
