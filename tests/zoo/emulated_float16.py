from planting import OFF, Pair, flash, tiny_bert


def plant() -> Pair:
    return Pair(tiny_bert(), OFF, flash(fp16_activations=True), OFF)


def twin() -> Pair:
    """The same file with passes on: the runtime takes the casts out."""
    return Pair(tiny_bert(), {}, flash(fp16_activations=True), {})
