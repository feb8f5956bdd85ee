"""Projections in a graph's facts: a computed tensor times a constant weight, plus a bias."""

from __future__ import annotations

import msgspec

from unlag.model.facts import GraphIndex, Node
from unlag.rewrites.weight_reads import weight_start

PRODUCTS = frozenset({"MatMul", "FusedMatMul", "TransposeMatMul"})
PROJECTIONS = PRODUCTS | {
    "Gemm", "MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QLinearMatMul", "QGemm",
}  # fmt: skip


class Projection(msgspec.Struct, frozen=True):
    """What a query, key or value comes from: ``output`` = source · weight + bias, before any split into heads."""

    output: str
    product: str
    """Output of the matrix product; equals ``output`` where there is no bias."""
    source: str
    weight: str
    bias: str | None
    width: int | None
    """Columns of ``output``."""


def read_projection(index: GraphIndex, output: str) -> Projection | None:
    """The projection whose result ``output`` is; nothing where it comes from anything else."""
    node, bias = index.producer(output), None
    if node is not None and node.op_type == "Add":
        position = next((p for p in (0, 1) if index.constant(node.inputs[p]) is not None), None)
        if position is None:
            return None
        bias = node.inputs[position]
        node = _through_casts(index, node.inputs[1 - position])
    if node is None or node.op_type not in PROJECTIONS or len(node.inputs) < 2:
        return None
    if node.op_type in PRODUCTS | {"Gemm"} and not is_weight(index, node.inputs[1]):
        return None
    return Projection(
        output=output,
        product=node.outputs[0],
        source=node.inputs[0],
        weight=node.inputs[1],
        bias=bias or _own_bias(node),
        width=_width(index, node, bias),
    )


def _through_casts(index: GraphIndex, name: str) -> Node | None:
    node = index.producer(name)
    while node is not None and node.op_type in {"Cast", "Identity"}:
        node = index.producer(node.inputs[0])
    return node


def _own_bias(node: Node) -> str | None:
    position = {"Gemm": 2, "MatMulNBits": 5, "DynamicQuantizeMatMul": 4, "MatMulIntegerToFloat": 6}.get(node.op_type)
    return node.inputs[position] or None if position is not None and len(node.inputs) > position else None


def _width(index: GraphIndex, node: Node, bias: str | None) -> int | None:
    columns = node.attributes.get("N")
    if isinstance(columns, int):
        return columns
    constant = index.constant(bias) if bias else None
    if constant is not None and len(constant.shape) == 1 and constant.shape[0] > 1:
        return constant.shape[0]
    start = weight_start(index, node.inputs[1])
    stored = None if start is None else index.constant(start)
    if stored is None or len(stored.shape) != 2 or not _keeps_order(index, node.inputs[1]):
        return None
    return stored.shape[0 if node.attributes.get("transB") else 1]


def _keeps_order(index: GraphIndex, name: str) -> bool:
    node = index.producer(name)
    while node is not None:
        if node.op_type in {"Transpose", "Reshape"}:
            return False
        node = index.producer(node.inputs[0])
    return True


def is_weight(index: GraphIndex, name: str) -> bool:
    """A constant, or one that is only dequantized, cast or transposed."""
    return weight_start(index, name) is not None
