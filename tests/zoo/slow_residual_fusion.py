from planting import Pair, tiny_bert
from unlag.runtimes.contract import Kind, Operator, Profile


def plant() -> Pair:
    return _pair(fused_ms=0.11)


def twin() -> Pair:
    """A fused kernel that is faster than what it replaced."""
    return _pair(fused_ms=0.04)


def _pair(fused_ms: float) -> Pair:
    apart = [
        _operator("LayerNormalization", "normalization", 0.03),
        _operator("Add", "elementwise", 0.02),
        _operator("Add", "elementwise", 0.02),
    ]
    fused = [_operator("SkipLayerNormalization", "normalization", fused_ms)]
    return Pair(
        tiny_bert(),
        {},
        tiny_bert(),
        {},
        standard_profile=Profile((*apart * 4,), 1.0, 5),
        variant_profile=Profile((*fused * 4,), 1.0, 5),
    )


def _operator(op_type: str, kind: Kind, time_ms: float) -> Operator:
    return Operator(op_type.lower(), op_type, kind, "float32", time_ms, "CPUExecutionProvider", (), ())
