import onnx_ir as ir

from planting import Pair, tiny_bert

VARIANT_OPTIONS = {"threads": "1"}


def plant() -> Pair:
    """Operators side by side in a model that is a chain: found on a machine with any number of cores."""
    return Pair(tiny_bert(), {"threads": "2"}, tiny_bert(), {"threads": "2", "execution": "parallel"})


def twin() -> Pair:
    """The number of threads that the bench gives anyway, said on one side only; one pool has no use for the other."""
    return Pair(tiny_bert(), {}, tiny_bert(), {"threads": "1", "inter_threads": "4"})


def infect(model: ir.Model) -> int:
    """Nothing in the model: ``VARIANT_OPTIONS`` leaves a core idle, where there are two."""
    return int(len(model.graph) > 0)
