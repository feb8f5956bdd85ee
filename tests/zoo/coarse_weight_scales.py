from planting import Pair, flash, tiny_bert


def plant() -> Pair:
    return Pair(tiny_bert(), {}, flash(int8_weights=True, per_tensor=True), {})


def twin() -> Pair:
    """A scale for each column."""
    return Pair(tiny_bert(), {}, flash(int8_weights=True), {})
