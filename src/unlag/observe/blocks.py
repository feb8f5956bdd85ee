"""Blocks of the network, from borders that both sides have, each with its time and error. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unlag.errors import Missing
from unlag.model.facts import GraphFacts
from unlag.observe.borders import find_borders, places_of
from unlag.observe.evidence import BlockFacts, Side, TensorPair
from unlag.runtimes.contract import Profile

MOST_BLOCKS = 32
"""More than that nobody reads; neighbors are joined."""
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
    if isinstance(standard.graph, Missing) or isinstance(variant.graph, Missing):
        return ()
    cuts = _with_work(standard.graph, _shared(standard.graph, variant.graph, pairs))
    if len(cuts) < 2:
        return ()
    ours = _times(standard, [cut.place for cut in cuts])
    theirs = _times(variant, [cut.variant_place for cut in cuts])
    names = _names(standard.graph, [cut.place for cut in cuts])
    return tuple(
        BlockFacts(
            name=name,
            standard_border=cut.standard,
            variant_border=cut.variant,
            standard_ms=None if ours is None else ours[index],
            variant_ms=None if theirs is None else theirs[index],
            error=cut.error,
        )
        for index, (name, cut) in enumerate(zip(names, cuts, strict=True))
    )


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


def _times(side: Side, places: Sequence[int]) -> list[float] | None:
    """Milliseconds of each block: every executed operator counts where its outputs are in the file's order."""
    if isinstance(side.profile, Missing) or isinstance(side.executed, Missing) or isinstance(side.graph, Missing):
        return None
    known = _executed_places(side.executed, places_of(side.graph))
    totals = [0.0] * len(places)
    for operator, place in zip(side.profile.operators, _operator_places(side.profile, known), strict=True):
        totals[min(bisect_left(places, place), len(places) - 1)] += operator.time_ms
    return totals


def _executed_places(executed: GraphFacts, file_places: Mapping[str, int]) -> dict[str, int]:
    """The place in the file of every executed node, by name; new tensors are where the latest of their inputs is."""
    of_tensor: dict[str, int] = {}
    of_node: dict[str, int] = {}
    for node in executed.nodes:
        outputs = [file_places[name] for name in node.outputs if name in file_places]
        inputs = [of_tensor.get(name, file_places.get(name, 0)) for name in node.inputs if name]
        place = min(outputs) if outputs else max(inputs, default=0)
        of_tensor |= dict.fromkeys(node.outputs, place)
        of_node[node.name] = place
    return of_node


def _operator_places(profile: Profile, known: Mapping[str, int]) -> list[int]:
    """Places of the profiled operators; one without a known name runs where the one before it ran."""
    places: list[int] = []
    for operator in profile.operators:
        places.append(known.get(operator.name, places[-1] if places else 0))
    return places


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
