"""Blocks of the network, from borders that both sides have, each with its time and error. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from unlag.errors import Missing
from unlag.model.facts import GraphFacts
from unlag.observe.borders import find_borders, in_order, places_of
from unlag.observe.evidence import BlockFacts, Side, TensorPair
from unlag.observe.placed import operator_spans

MOST_BLOCKS = 32
"""More than that nobody reads; neighbors are joined."""
MOST_UNPLACED = 0.1
"""Where operators with a larger share of a side's time can't be told to belong to one block, no block gets a time."""
PRODUCTS = frozenset({
    "MatMul", "Gemm", "Conv", "ConvTranspose", "FusedConv", "FusedMatMul", "MatMulInteger", "ConvInteger",
    "QLinearConv", "QLinearMatMul", "QGemm", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits",
    "Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention", "LSTM", "GRU", "RNN",
    "DynamicQuantizeLSTM", "Einsum", "EmbedLayerNormalization",
})  # fmt: skip
_KINDS = (
    ("attention", frozenset({"Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention"})),
    ("recurrent", frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM", "Scan", "Loop"})),
    ("convolution", frozenset({"Conv", "ConvTranspose", "FusedConv", "ConvInteger", "QLinearConv"})),
    ("embedding", frozenset({"Gather", "EmbedLayerNormalization"})),
)


@dataclass(frozen=True)
class _Cut:
    """A border that both sides have, with the places of the nodes that make it."""

    standard: str
    variant: str
    place: int
    variant_place: int
    error: float | None


def find_blocks(standard: Side, variant: Side, pairs: Sequence[TensorPair]) -> tuple[BlockFacts, ...]:
    """The standard's borders that have a partner in the variant cut both networks into the same blocks."""
    standard, variant = _ordered(standard), _ordered(variant)
    if isinstance(standard.graph, Missing) or isinstance(variant.graph, Missing):
        return ()
    cuts = _with_work(standard.graph, _shared(standard.graph, variant.graph, pairs))
    if len(cuts) < 2:
        return ()
    ours = _times(standard, [cut.place for cut in cuts])
    theirs = _times(variant, [cut.variant_place for cut in cuts])
    ours_ms, theirs_ms = (None if isinstance(times, Missing) else times for times in (ours, theirs))
    names = _names(standard.graph, [cut.place for cut in cuts])
    return tuple(
        BlockFacts(
            name=name,
            standard_border=cut.standard,
            variant_border=cut.variant,
            standard_ms=None if ours_ms is None else ours_ms[index],
            variant_ms=None if theirs_ms is None else theirs_ms[index],
            error=cut.error,
        )
        for index, (name, cut) in enumerate(zip(names, cuts, strict=True))
    )


def _ordered(side: Side) -> Side:
    return side if isinstance(side.graph, Missing) else msgspec.structs.replace(side, graph=in_order(side.graph))


def _shared(standard: GraphFacts, variant: GraphFacts, pairs: Sequence[TensorPair]) -> list[_Cut]:
    """Borders with a partner, in order. The outputs belong together whatever values they hold."""
    partners = {pair.standard: pair for pair in pairs}
    places, own = places_of(variant), places_of(standard)
    cuts = []
    for border in find_borders(standard):
        pair = partners.get(border.tensor)
        if pair is not None and pair.variant in places:
            cuts.append(_Cut(border.tensor, pair.variant, border.place, places[pair.variant], pair.error))
    ends = standard.outputs[0].name, variant.outputs[0].name
    follows = all(cut.place < own.get(ends[0], -1) and cut.variant_place < places.get(ends[1], -1) for cut in cuts)
    if cuts and follows:
        cuts.append(_Cut(*ends, own[ends[0]], places[ends[1]], None))
    return cuts


def _with_work(graph: GraphFacts, cuts: Sequence[_Cut]) -> list[_Cut]:
    """Cuts such that every block multiplies by weights, at most ``MOST_BLOCKS`` of them; the last one stays."""
    kept: list[_Cut] = []
    begin = 0
    for cut in cuts:
        nodes = graph.nodes[begin : cut.place + 1]
        if not kept or any(node.op_type in PRODUCTS or _looks_up(graph, node.inputs) for node in nodes):
            kept.append(cut)
        else:
            kept[-1] = cut
        begin = cut.place + 1
    stride = max(1, math.ceil(len(kept) / MOST_BLOCKS))
    return kept[::-1][::stride][::-1]


def _looks_up(graph: GraphFacts, inputs: Sequence[str]) -> bool:
    table = graph.constants.get(inputs[0]) if len(inputs) == 2 else None
    return table is not None and len(table.shape) == 2 and table.size_bytes > 65536


def why_untimed(side: Side, borders: Sequence[str]) -> str:
    """Why the side's time can't be split by these borders; empty where it can, or where there is no profile at all."""
    side = _ordered(side)
    if isinstance(side.graph, Missing) or isinstance(side.profile, Missing) or not borders:
        return ""
    places = places_of(side.graph)
    times = _times(side, [places.get(border, len(side.graph.nodes)) for border in borders])
    return times.reason if isinstance(times, Missing) else ""


def _times(side: Side, places: Sequence[int]) -> list[float] | Missing:
    """Milliseconds of each block, every executed operator in the one where the file has it; or why there are none."""
    if isinstance(side.profile, Missing) or isinstance(side.graph, Missing):
        return Missing("it was not profiled")
    if isinstance(side.executed, Missing):
        return Missing(f"the graph that ran is not known: {side.executed.reason}")
    totals = [0.0] * len(places)
    unplaced_ms = 0.0
    for operator, span in zip(
        side.profile.operators, operator_spans(side.profile, side.executed, side.graph), strict=True
    ):
        first, last = (min(bisect_left(places, place), len(places) - 1) for place in span)
        totals[last] += operator.time_ms
        unplaced_ms += operator.time_ms if first != last else 0.0
    share = unplaced_ms / (sum(totals) or 1.0)
    if share > MOST_UNPLACED:
        return Missing(f"the runtime has renamed tensors, so that {share:.0%} of its time belongs to no block for sure")
    return totals


def _names(graph: GraphFacts, places: Sequence[int]) -> list[str]:
    """What each block is, from the operators in it, numbered by kind; layers by their attention."""
    kinds = []
    begin = 0
    for place in places:
        kinds.append(_kind([node.op_type for node in graph.nodes[begin : place + 1]]))
        begin = place + 1
    layered = kinds.count("attention") > 1
    if layered and kinds[-1] == "linear" and kinds[-2] != "attention":
        kinds[-1] = "head"
    counts: dict[str, int] = {}
    names = []
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
        layer = counts.get("attention", 0)
        if layered and layer and kind in {"attention", "linear"}:
            names.append(f"layer {layer} {'feed-forward' if kind == 'linear' else kind}")
        else:
            names.append(kind if kinds.count(kind) == 1 else f"{kind} {counts[kind]}")
    return names


def _kind(op_types: Sequence[str]) -> str:
    present = set(op_types)
    if "Softmax" in present and PRODUCTS & set(op_types[op_types.index("Softmax") :]):
        return "attention"
    for kind, marks in _KINDS:
        if present & marks and (kind != "embedding" or not present & PRODUCTS - {"EmbedLayerNormalization"}):
            return kind
    return "linear" if present & PRODUCTS else "glue"
