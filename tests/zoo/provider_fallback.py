"""No ``infect``: a fallback needs a device; the profiles are recorded ones."""

from planting import Pair, tiny_bert
from unlag.runtimes.contract import Kind, Operator, Profile

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
ON_DEVICE = {"provider": "cuda"}
PRODUCT = [("MatMul", "gemm", CUDA, 0.05), ("Add", "elementwise", CUDA, 0.01)]


def plant() -> Pair:
    """Integer products without a kernel on the device, and copies around them."""
    fallen = [
        ("MemcpyToHost", "copy", CUDA, 0.04),
        ("MatMulInteger", "gemm", CPU, 0.30),
        ("MemcpyFromHost", "copy", CUDA, 0.04),
        *PRODUCT,
    ]
    return _pair(fallen * 4)


def twin() -> Pair:
    """Arithmetic on shapes, which is put on the CPU on purpose."""
    shapes = [("Shape", "layout", CPU, 0.0002), ("Gather", "layout", CPU, 0.0002), ("Concat", "layout", CPU, 0.0002)]
    return _pair(shapes + PRODUCT * 4)


def _pair(operators: list[tuple[str, Kind, str, float]]) -> Pair:
    return Pair(
        tiny_bert(),
        ON_DEVICE,
        tiny_bert(),
        ON_DEVICE,
        standard_profile=recorded(PRODUCT * 4),
        variant_profile=recorded(operators),
    )


def recorded(operators: list[tuple[str, Kind, str, float]]) -> Profile:
    made = [
        Operator(f"{op_type}.{number}", op_type, kind, _precision(op_type), time_ms, kernel, (), ())
        for number, (op_type, kind, kernel, time_ms) in enumerate(operators)
    ]
    return Profile(tuple(made), 1.0, 5)


def _precision(op_type: str) -> str:
    return "int8" if op_type == "MatMulInteger" else "float32"
