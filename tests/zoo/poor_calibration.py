import onnx
import onnx_ir as ir

from calibrating import judged, quantize_named_products, random_feed, statically_quantized, stretch_scales
from planting import NEW_X86, Pair, cnn_feed, editable, tiny_cnn

CLIPPED, WIDE = 1 / 8, 12.0
MOST_PLACES = 6
CONSEQUENCES = frozenset({"rounded_activations"})
"""A range that is far too wide leaves few codes for what is there."""


def plant() -> Pair:
    return _pair(CLIPPED, WIDE)


def twin() -> Pair:
    """Ranges a little too small, as percentiles of the values give them, or three times too wide."""
    return _pair(0.8, 3.0)


def _pair(first: float, second: float) -> Pair:
    model = editable(statically_quantized(tiny_cnn(), cnn_feed()))
    assert stretch_scales(model, {"first.relu": first, "second.relu": second}) == 2
    return Pair(tiny_cnn(), {}, ir.to_proto(model), {}, isa=NEW_X86, feed=cnn_feed())


def infect(model: ir.Model) -> int:
    """Static quantization of products, with some ranges an eighth of what the tensors hold."""
    feed = random_feed(model)
    if feed is None or not quantize_named_products(model, feed, rounded=False):
        return 0
    quantized: onnx.ModelProto = ir.to_proto(model)
    tensors = [judgement.activation.tensor for judgement in judged(quantized, feed) if not judgement.fault]
    return stretch_scales(model, dict.fromkeys(tensors[:: max(1, len(tensors) // MOST_PLACES)], CLIPPED))
