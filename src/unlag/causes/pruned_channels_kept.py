"""Pruned neurons that are still computed.

What it is: weights hold whole channels of zeros: neurons of a feed-forward layer or filters of a convolution that
pruning has switched off, but that the matrices still have.

Why it costs: dense kernels multiply by zero as they do by any number. Only a smaller matrix is faster; a mask of zeros
makes a model neither smaller nor quicker.

How it is seen: two products with only elementwise work in between, where columns of the first or rows of the second
weight are all zero, more than in the standard's. Zeros that are scattered over a weight can't be cut out: they are
counted, and ruled out.

Remedy: cut the zero channels out of both weights and of the bias between them.

Safety: exact. Nothing went through these channels.

Source: TensorRT#4065, pytorch#36214, sparseml#1120.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.facts import Constant, GraphIndex
from unlag.observe.evidence import Evidence
from unlag.observe.graphs import file_graphs
from unlag.rewrites.channel_pairs import ChannelPair, find_channel_pairs, input_axis, output_axis
from unlag.rewrites.remove_zero_channels import remove_zero_channels
from unlag.rewrites.weight_reads import weight_reads


def _detect(evidence: Evidence) -> Finding:
    standard, variant = file_graphs(evidence)
    pairs = find_channel_pairs(variant)
    zeros = {pair.first.name or pair.first.outputs[0]: _zeros(variant, pair) for pair in pairs}
    where = tuple(name for name, number in zeros.items() if number)
    ours, theirs = sum(zeros.values()), sum(_zeros(standard, pair) for pair in find_channel_pairs(standard))
    channels = sum(pair.channels for pair in pairs)
    count = f"{ours} of {channels} inner channels are all zero"
    if ours > theirs:
        return Finding("found", f"{count}, and computed all the same (standard: {theirs})", where)
    if ours:
        return Finding("ruled_out", f"{count}, in the standard {theirs}")
    share, size = _scattered(variant), _scattered(standard)
    note = f"; {share:.0%} of the weights' elements are zero (standard: {size:.0%})"
    why = ", but scattered: dense kernels multiply them, and no channel can be cut" if share > 0.1 else ""
    return Finding("ruled_out", f"{count}{note}{why}")


def _zeros(index: GraphIndex, pair: ChannelPair) -> int:
    """Channels that can be cut, judged by how many slices are all zero."""
    unmade = _slices(index.constant(pair.first.inputs[1]), output_axis(pair.first))
    unread = _slices(index.constant(pair.second.inputs[1]), input_axis(pair.second))
    silent = [_zero_elements(index.facts.constants[name]) for name in pair.vectors]
    without_bias = min([unmade, *silent]) if pair.zero_stays else 0
    return min(max(unread, without_bias), pair.channels - 1)


def _slices(constant: Constant | None, axis: int) -> int:
    if constant is None:
        return 0
    if constant.values is not None:
        return 0  # up to a few dozen elements: nothing that costs
    return 0 if constant.zero_slices is None else constant.zero_slices[axis]


def _zero_elements(constant: Constant) -> int:
    if constant.values is not None:
        return sum(value == 0 for value in constant.values)
    size = 1
    for dimension in constant.shape:
        size *= dimension
    return round((constant.zero_share or 0.0) * size)


def _scattered(index: GraphIndex) -> float:
    """Share of zeros among the elements of all weights, by bytes."""
    constants = {read.stored: read.constant for read in weight_reads(index)}.values()
    total = sum(constant.size_bytes for constant in constants)
    return sum(constant.size_bytes * (constant.zero_share or 0.0) for constant in constants) / total if total else 0.0


CAUSE = Cause(
    id="pruned_channels_kept",
    title="pruned channels that are still computed",
    dimension="graph",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph", "standard_graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="remove_zero_channels",
            title="cut channels that are all zero out of the weights",
            safety="EXACT",
            step=Step.CLEAN,
            apply=lambda draft: remove_zero_channels(draft.model),
        ),
    ),
)
