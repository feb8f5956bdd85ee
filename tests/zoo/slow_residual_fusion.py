import onnx_ir as ir

from planting import Pair, tiny_bert
from unlag.rewrites.inferred_shapes import inferred_shapes
from unlag.rewrites.neighbors import made_by
from unlag.runtimes.contract import Kind, Operator, Profile

VARIANT_OPTIONS = STANDARD_OPTIONS = {"optimization": "all"}
"""The fusion is one of the runtime's passes."""


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


def infect(model: ir.Model) -> int:
    """Equal shapes declared for the two sides of residual additions: what the runtime's fusion wants to know.

    A file with the fused operators in it would be no plant: then no pass of the runtime made it slower.
    """
    named = next((v.shape for v in model.graph.inputs if v.shape is not None and len(v.shape) == 2), None)
    if named is None or all(isinstance(size, int) for size in named):
        return 0  # the standard's shapes are known, and it is fused as well
    shapes, changed = inferred_shapes(model), 0
    for norm in [n for n in model.graph if n.op_type == "LayerNormalization" and not n.domain]:
        add = made_by(norm.inputs[0], "Add")
        sides = [] if add is None else [shapes.get(str(value.name)) for value in add.inputs]
        if not sides or sides[0] != sides[1] or sides[0] is None or sides[0][:-1] != (None, None):
            continue
        for value in add.inputs:
            value.shape, value.type = ir.Shape([*named, sides[0][-1]]), ir.TensorType(ir.DataType.FLOAT)
        changed += 1
    return changed
