import numpy as np
import onnx
import onnx_ir as ir

from calibrating import judged, quantize_named_products, random_feed, statically_quantized
from planting import NEW_X86, Pair
from rewriting import parsed

WIDTH = 1024
FEED = {"x": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}


def plant() -> Pair:
    return _pair(100.0)


def twin() -> Pair:
    """Channels that differ by a factor of two."""
    return _pair(2.0)


def _pair(outlier: float) -> Pair:
    model = feed_forward(outlier)
    return Pair(model, {}, statically_quantized(model, FEED), {}, isa=NEW_X86, feed=FEED)


def feed_forward(outlier: float) -> onnx.ModelProto:
    """Two products that give the same whatever the outlier: one hidden channel is as many times as large."""
    rng = np.random.default_rng(1)
    up, down = rng.standard_normal((64, WIDTH)) / 8, rng.standard_normal((WIDTH, 64)) / 32
    up[:, 7] *= outlier
    down[7] /= outlier
    text = """g (float[8, 64] x) => (float[8, 64] y) { h = MatMul(x, up)  y = MatMul(h, down) }"""
    return parsed(text, up=up.astype(np.float32), down=down.astype(np.float32))


def infect(model: ir.Model) -> int:
    """Static quantization of the products whose tensors have outliers, ranges calibrated."""
    feed = random_feed(model)
    if feed is None or not quantize_named_products(model, feed, rounded=True):
        return 0
    return sum(judgement.fault == "rounded" for judgement in judged(ir.to_proto(model), feed))
