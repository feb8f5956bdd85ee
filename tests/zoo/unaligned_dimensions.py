"""No ``infect``: tensor cores need a device; the profiles are recorded ones."""

from planting import Pair, tiny_bert
from unlag.runtimes.contract import Operator, Profile

ON_DEVICE = {"provider": "cuda"}
ROWS = 37
"""Rows need not be a multiple of 8: each is aligned by itself."""


def plant() -> Pair:
    """A vocabulary as it was counted."""
    return _pair(50257)


def twin() -> Pair:
    """A padded vocabulary, and a batch of any size."""
    return _pair(50264)


def _pair(vocabulary: int) -> Pair:
    return Pair(
        tiny_bert(),
        ON_DEVICE,
        tiny_bert(),
        ON_DEVICE,
        standard_profile=_recorded("float32", 50257),
        variant_profile=_recorded("float16", vocabulary),
    )


def _recorded(precision: str, vocabulary: int) -> Profile:
    products = [_product(precision, 768, 768)] * 4 + [_product(precision, 768, vocabulary)]
    return Profile(tuple(products), 1.0, 5)


def _product(precision: str, inner: int, columns: int) -> Operator:
    shapes = ((1, ROWS, inner), (inner, columns))
    time_ms = inner * columns * 1e-8
    return Operator(
        "product", "MatMul", "gemm", precision, time_ms, "CUDAExecutionProvider", shapes, ((1, ROWS, columns),)
    )
