from planting import OFF, Pair, tiny_bert


def plant() -> Pair:
    return Pair(tiny_bert(), {}, tiny_bert(), OFF)


def twin() -> Pair:
    """A level below ``all`` on both sides."""
    return Pair(tiny_bert(), {"optimization": "extended"}, tiny_bert(), {"optimization": "extended"})
