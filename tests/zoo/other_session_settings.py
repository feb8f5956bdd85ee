from planting import Pair, tiny_bert


def plant() -> Pair:
    return Pair(tiny_bert(), {}, tiny_bert(), {"threads": "1", "arena": "off"})


def twin() -> Pair:
    """Settings, but the same on both sides; the level of optimization has a cause of its own."""
    return Pair(tiny_bert(), {"threads": "1"}, tiny_bert(), {"threads": "1"})
