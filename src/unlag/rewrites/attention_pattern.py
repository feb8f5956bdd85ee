"""Attention blocks in a graph's facts: where they are, what they are scaled by, which projections feed them.

A block is spelled out (product of queries and keys, Softmax, product with values) or one fused operator.
Works on files and on the graphs that runtimes really execute.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from unlag.model.facts import GraphFacts, GraphIndex, Node
from unlag.rewrites.evaluate import Array, Evaluator
from unlag.rewrites.projections import PRODUCTS, Projection, is_weight, read_projection
from unlag.rewrites.weight_reads import weight_start

FUSED = frozenset({"Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention", "PackedAttention",
                   "PackedMultiHeadAttention", "DecoderMaskedMultiHeadAttention"})  # fmt: skip
_LAYOUT = frozenset(
    {
        "Reshape", "Transpose", "Identity", "Cast", "Split", "Slice", "Gather", "Squeeze", "Unsqueeze", "Dropout",
        "Expand", "Tile", "Flatten",
    }
)  # fmt: skip
_TO_SCORES = frozenset({"Add", "Where", "Cast", "Identity", "Reshape", "Transpose", "Mul", "Div", "Max", "Clip", "Sub"})
_GUARDS = frozenset({"Cast", "Identity", "Dropout", "Where", "QuantizeLinear", "DequantizeLinear"})
_LONGEST_PATH = 24

PROBE_BATCH, PROBE_SEQUENCE = 3, 5
"""Sizes that no model has as a number of heads, a head size or a hidden size by chance."""


class AttentionBlock(msgspec.Struct, frozen=True):
    """One attention block, spelled out or fused. Names are names of values, ``node`` is for people."""

    node: str
    fused: bool
    softmax: str
    """The Softmax's input; the operator's own output where the block is fused."""
    scores: str
    """Output of the product of queries and keys."""
    context: str
    """Output of the product with the values."""
    operands: tuple[str, str, str]
    """What the two products read as queries, keys and values."""
    projections: tuple[Projection | None, Projection | None, Projection | None]
    scale: float | None
    """The factor between query · key and what goes into the Softmax, where it can be told."""
    paths: tuple[tuple[str, ...], ...] = ()
    """Values between each operand and what it comes from, both included; none for a fused block."""


def attention_blocks(facts: GraphFacts) -> tuple[AttentionBlock, ...]:
    """All blocks, in the graph's order."""
    index = GraphIndex(facts)
    found = []
    for node in facts.nodes:
        if node.op_type == "Softmax":
            block = _spelled(index, node)
            if block is not None:
                found.append(block)
        elif node.op_type in FUSED:
            found.append(_fused(index, node))
    return tuple(found)


def probe_feeds(index: GraphIndex, projections: tuple[Projection | None, ...]) -> dict[str, Array]:
    """Numbers for a small run: inputs of ones, [batch, sequence], and projections with every element numbered.

    Keys and values of earlier runs, [batch, heads, past, size], are fed with a past of nothing.
    """
    batch, sequence = probe_sizes(index.facts)
    feeds: dict[str, Array] = {}
    for info in index.facts.inputs:
        if info.shape is not None and len(info.shape) == 2 and info.dtype != "unknown":
            feeds[info.name] = np.ones((batch, sequence), info.dtype)
        elif info.shape is not None and len(info.shape) == 4 and info.dtype == "float32":
            _first, heads, past, size = info.shape
            if isinstance(heads, int) and isinstance(size, int) and not isinstance(past, int):
                feeds[info.name] = np.zeros((batch, heads, 0, size), info.dtype)
    for projection in projections:
        if projection is not None and projection.width is not None and projection.output not in feeds:
            numbers = np.arange(1, batch * sequence * projection.width + 1, dtype=np.float64)
            feeds[projection.output] = numbers.reshape(batch, sequence, projection.width)
    for projection in projections:
        for name in () if projection is None else _sources(index, projection):  # exporters ask for its shape
            feeds.setdefault(name, np.zeros((batch, sequence, _rows(index, projection))))
    return feeds


def _sources(index: GraphIndex, projection: Projection) -> list[str]:
    """What is projected, before and after it was passed on as it is."""
    names = [projection.source]
    node = index.producer(projection.source)
    while node is not None and node.op_type in {"Identity", "Cast"} and len(names) < _LONGEST_PATH:
        names.append(node.inputs[0])
        node = index.producer(node.inputs[0])
    return names


def _rows(index: GraphIndex, projection: Projection | None) -> int:
    """Columns of what is projected, where the weight tells."""
    start = None if projection is None else weight_start(index, projection.weight)
    stored = None if start is None else index.constant(start)
    return stored.shape[0] if stored is not None and len(stored.shape) == 2 else 1


def probe_sizes(facts: GraphFacts) -> tuple[int, int]:
    """Batch and sequence for a small run: the graph's own where they are fixed."""
    sizes = [PROBE_BATCH, PROBE_SEQUENCE]
    for info in facts.inputs:
        if info.shape is not None and len(info.shape) == 2 and info.dtype.startswith("int"):
            return tuple(d if isinstance(d, int) else s for d, s in zip(info.shape, sizes, strict=True))  # type: ignore[return-value]  # two
    return PROBE_BATCH, PROBE_SEQUENCE


def _spelled(index: GraphIndex, softmax: Node) -> AttentionBlock | None:
    down = _to_scores(index, softmax.inputs[0])
    if down is None:
        return None
    product, path = down
    context = _context(index, softmax.outputs[0])
    if context is None:
        return None
    operands = (product.inputs[0], product.inputs[1], context.inputs[1])
    walks = [_to_projection(index, name) for name in operands]
    projections = tuple(read_projection(index, names[-1]) for names, _path in walks)
    evaluator = Evaluator(index, probe_feeds(index, projections))
    multipliers = [*path, *walks[0][1], *walks[1][1]]
    alpha = product.attributes.get("alpha", 1.0)
    scale = _product_of(evaluator, multipliers, float(alpha) if isinstance(alpha, (int, float)) else 1.0)
    return AttentionBlock(
        node=softmax.name or softmax.outputs[0],
        fused=False,
        softmax=softmax.inputs[0],
        scores=product.outputs[0],
        context=context.outputs[0],
        operands=operands,
        projections=(projections[0], projections[1], projections[2]),
        scale=scale,
        paths=tuple(tuple(names) for names, _path in walks),
    )


Multiplier = tuple[Node, int]
"""A Mul or Div, and which of its inputs is the data."""


def _to_scores(index: GraphIndex, name: str) -> tuple[Node, list[Multiplier]] | None:
    """The product of two computed tensors that ``name`` comes from, and the multipliers on the way."""
    paths: list[tuple[str, list[Multiplier]]] = [(name, [])]
    for _step in range(4 * _LONGEST_PATH):
        if not paths:
            return None
        current, multipliers = paths.pop(0)
        node = index.producer(current)
        if node is None:
            continue
        if node.op_type in PRODUCTS and not any(is_weight(index, i) for i in node.inputs[:2]):
            return node, multipliers
        if node.op_type not in _TO_SCORES or node.domain:
            continue
        for position, source in enumerate(node.inputs[:1] if node.op_type in _LAYOUT else node.inputs):
            more = [(node, position)] if node.op_type in {"Mul", "Div"} else []
            if source and not (node.op_type == "Div" and position == 1):
                paths.append((source, [*multipliers, *more]))
    return None


def _context(index: GraphIndex, name: str) -> Node | None:
    """The product with the values that reads these attention weights, through casts and NaN guards."""
    waiting = [name]
    for _step in range(_LONGEST_PATH):
        if not waiting:
            return None
        current = waiting.pop(0)
        for node in index.consumers.get(current, []):
            if node.op_type in PRODUCTS and node.inputs[0] == current:
                return node
            if node.op_type in _GUARDS:
                waiting.append(node.outputs[0])
    return None


def _to_projection(index: GraphIndex, name: str) -> tuple[list[str], list[Multiplier]]:
    """Back through layout nodes and scalar factors to what was projected: the values on the way, and those factors."""
    multipliers: list[Multiplier] = []
    names = [name]
    for _step in range(_LONGEST_PATH):
        node = index.producer(name)
        if node is None or node.domain or not node.inputs:
            break
        if node.op_type in {"Mul", "Div"}:
            position = 1 if node.op_type == "Mul" and _is_factor(index, node.inputs[0]) else 0
            if not _is_factor(index, node.inputs[1 - position]):
                break
            multipliers.append((node, position))
            name = node.inputs[position]
        elif node.op_type in _LAYOUT:
            name = node.inputs[0]
        else:
            break
        names.append(name)
    return names, multipliers


def _is_factor(index: GraphIndex, name: str) -> bool:
    """Whether a tensor looks like a number rather than like data: a one-element constant, or made by Sqrt and such."""
    if index.constant(name) is not None:
        return index.scalar(name) is not None
    node = index.producer(name)
    for _step in range(_LONGEST_PATH):
        if node is None:
            return False
        if node.op_type in {"Sqrt", "Reciprocal", "Pow", "Shape", "Size"}:
            return True
        if node.op_type not in {"Cast", "Div", "Mul", "Slice", "Gather", "Squeeze", "Unsqueeze", "Identity"}:
            return False
        computed = [i for i in node.inputs if i and index.constant(i) is None]
        node = index.producer(computed[0]) if computed else None
    return False


def _product_of(evaluator: Evaluator, multipliers: list[Multiplier], start: float) -> float | None:
    scale = start
    for node, position in multipliers:
        factor = evaluator.scalar(node.inputs[1 - position])
        if factor is None or not math.isfinite(factor) or factor == 0:
            return None
        scale = scale / factor if node.op_type == "Div" else scale * factor
    return scale


def _fused(index: GraphIndex, node: Node) -> AttentionBlock:
    inputs = (*node.inputs[:3], "", "", "")[:3]
    separate = node.op_type not in {"Attention", "QAttention"} or not node.domain
    walks = [_to_projection(index, name)[0][-1] for name in inputs] if separate else []
    projections = tuple(read_projection(index, name) if name else None for name in walks) or (None, None, None)
    return AttentionBlock(
        node=node.name or node.outputs[0],
        fused=True,
        softmax=node.outputs[0],
        scores=node.outputs[0],
        context=node.outputs[0],
        operands=(inputs[0], inputs[1], inputs[2]),
        projections=(projections[0], projections[1], projections[2]),
        scale=_fused_scale(index, node, projections),
    )


def _fused_scale(index: GraphIndex, node: Node, projections: tuple[Projection | None, ...]) -> float | None:
    scale = node.attributes.get("scale")
    if isinstance(scale, (int, float)) and scale:
        return float(scale)
    heads = node.attributes.get("num_heads", node.attributes.get("q_num_heads"))
    if not isinstance(heads, int):
        return None
    packed = index.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    width = projections[0].width if projections[0] is not None else None
    if packed is not None and len(packed.shape) == 2:
        width = packed.shape[1] // 3
    return None if width is None else 1 / math.sqrt(width / heads)
