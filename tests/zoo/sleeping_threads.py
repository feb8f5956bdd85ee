import onnx_ir as ir

from planting import Pair, tiny_bert

VARIANT_OPTIONS = {"spinning": "off"}


def plant() -> Pair:
    return Pair(tiny_bert(), {"threads": "2"}, tiny_bert(), {"threads": "2", "spinning": "off"})


def twin() -> Pair:
    """Spinning off, but one thread: there is none to wake."""
    return Pair(tiny_bert(), {"threads": "1"}, tiny_bert(), {"threads": "1", "spinning": "off"})


def infect(model: ir.Model) -> int:
    """Nothing in the model: ``VARIANT_OPTIONS`` lets threads sleep, where there are two."""
    return int(len(model.graph) > 0)
