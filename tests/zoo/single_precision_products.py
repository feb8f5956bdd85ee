"""No ``infect``: tensor cores need a device; the profiles are recorded ones."""

from planting import Pair, tiny_bert
from unlag.runtimes.contract import Operator, Profile

ON_DEVICE = {"provider": "cuda"}


def plant() -> Pair:
    """Widened to float32, all of it."""
    return _pair("float32")


def twin() -> Pair:
    """In half precision, as the standard is."""
    return _pair("float16")


def _pair(precision: str) -> Pair:
    return Pair(
        tiny_bert(),
        ON_DEVICE,
        tiny_bert(),
        ON_DEVICE,
        standard_profile=recorded("float16"),
        variant_profile=recorded(precision),
    )


def recorded(precision: str) -> Profile:
    shapes = ((1, 64, 768), (768, 768))
    product = Operator("product", "MatMul", "gemm", precision, 0.05, "CUDAExecutionProvider", shapes, ((1, 64, 768),))
    return Profile((product,) * 6, 1.0, 5)
