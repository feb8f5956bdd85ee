import onnx_ir as ir

from calibrating import Feed, calibrated, float_activations_of, insert_pair, random_feed, statically_quantized
from planting import NEW_X86, Pair, cnn_feed, editable, tiny_bert, tiny_cnn, tiny_feed

PLAIN = frozenset(
    {"LayerNormalization", "Softmax", "Erf", "Tanh", "Sigmoid", "Relu", "HardSigmoid", "Div", "Pad", "Add"}
)
"""Operators that ONNX Runtime has no kernel for on 16-bit codes."""
MOST_PLACES = 48


def plant() -> Pair:
    model = editable(tiny_bert())
    _surround(model, tiny_feed())
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """A convolutional network in the same notation, all of which becomes integer kernels."""
    quantized = statically_quantized(tiny_cnn(), cnn_feed())
    return Pair(tiny_cnn(), {}, quantized, {}, isa=NEW_X86, feed=cnn_feed())


def infect(model: ir.Model) -> int:
    """Pairs of 16-bit codes in front of operators without an integer kernel."""
    feed = random_feed(model)
    return 0 if feed is None else _surround(model, feed)


def _surround(model: ir.Model, feed: Feed) -> int:
    values = {
        use.node.inputs[use.idx]: use.node
        for value in float_activations_of(model)
        for use in value.uses()
        if use.node.op_type in PLAIN and use.idx == 0 and use.node.graph is model.graph
    }
    ranges = calibrated(model, values, feed)
    chosen = list(values.items())[:MOST_PLACES]
    for value, reader in chosen:
        low, high = ranges[str(value.name)]
        # Twice the range that was seen: 16 bits have the room.
        insert_pair(model, reader, 0, (2 * low, 2 * high), "uint16")
    return len(chosen)
