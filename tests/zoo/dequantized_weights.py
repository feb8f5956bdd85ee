from planting import OFF, Pair, flash, tiny_bert


def plant() -> Pair:
    return Pair(tiny_bert(), OFF, flash(int8_weights=True), OFF)


def twin() -> Pair:
    """The same file with passes on: the runtime computes from the codes."""
    return Pair(tiny_bert(), {}, flash(int8_weights=True), {})
