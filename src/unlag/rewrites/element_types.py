"""Element types of values, where the graph does not declare them: for graphs in memory and for their facts."""

from __future__ import annotations

import onnx_ir as ir

from unlag.model.facts import GraphFacts, dtype_name

_SAME_AS_FIRST = frozenset(
    {
        "Abs", "Add", "Clip", "Concat", "Div", "Dropout", "Elu", "Erf", "Exp", "Expand", "Flatten", "Gather",
        "GatherElements", "GatherND", "Gelu", "Gemm", "Identity", "LayerNormalization", "LeakyRelu", "Log",
        "MatMul", "Max", "Min", "Mul", "Neg", "Pad", "Pow", "Reciprocal", "ReduceMax", "ReduceMean",
        "ReduceMin", "ReduceSum", "Relu",
        "Reshape", "Sigmoid", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose",
        "Unsqueeze", "Conv", "InstanceNormalization", "BatchNormalization", "RMSNormalization", "FusedMatMul",
        "BiasGelu", "FastGelu", "QuickGelu", "SkipLayerNormalization", "Attention", "MultiHeadAttention",
    }
)  # fmt: skip
"""Operators whose outputs have the element type of their first input."""

_BOOLEAN = frozenset(
    {"And", "Or", "Not", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf"}
)


def element_types(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Types of the main graph's values: declared, or following from the operators. Unknown ones are left out."""
    types: dict[ir.Value, ir.DataType] = {}
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        _declare(value, types)
    for node in model.graph:
        for source in node.inputs:
            if source is not None:
                _declare(source, types)
        inferred = _inferred(node, types)
        for value in node.outputs:
            _declare(value, types)
            if value not in types and inferred is not None and (len(node.outputs) == 1 or node.op_type == "Split"):
                types[value] = inferred
    return types


def _declare(value: ir.Value, types: dict[ir.Value, ir.DataType]) -> None:
    if value in types:
        return
    tensor = ir.convenience.get_const_tensor(value)
    dtype = value.dtype if tensor is None else tensor.dtype
    if dtype is not None:
        types[value] = dtype


def _inferred(node: ir.Node, types: dict[ir.Value, ir.DataType]) -> ir.DataType | None:
    if node.op_type == "Cast" and "to" in node.attributes:
        return ir.DataType(node.attributes["to"].as_int())
    fixed, index = _rule(node.op_type)
    source = node.inputs[index] if index is not None and len(node.inputs) > index else None
    return fixed if source is None else types.get(source)


def _rule(op_type: str) -> tuple[ir.DataType | None, int | None]:
    """The type that an operator always gives, or the input whose type it gives."""
    if op_type in _BOOLEAN:
        return ir.DataType.BOOL, None
    if op_type in {"Shape", "Size", "ArgMax", "ArgMin", "NonZero"}:
        return ir.DataType.INT64, None
    if op_type in _SAME_AS_FIRST:
        return None, 0
    return None, 1 if op_type in {"DequantizeLinear", "Where", "CastLike"} else None


def fact_types(facts: GraphFacts) -> dict[str, str]:
    """Element types by name, like ``element_types``; runtimes do not declare them in the graphs that they write."""
    types = {name: constant.dtype for name, constant in facts.constants.items()} | facts.types
    types |= {info.name: info.dtype for info in facts.inputs}
    for node in facts.nodes:
        to = node.attributes.get("to")
        fixed, index = _rule(node.op_type)
        inferred = None if fixed is None else dtype_name(fixed)
        if node.op_type == "Cast" and isinstance(to, int):
            inferred = dtype_name(ir.DataType(to))
        elif index is not None and len(node.inputs) > index:
            inferred = types.get(node.inputs[index])
        if inferred is not None and (len(node.outputs) == 1 or node.op_type == "Split"):
            for name in node.outputs:
                types.setdefault(name, inferred)
    return types
