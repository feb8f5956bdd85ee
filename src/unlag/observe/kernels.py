"""Operators that have integer kernels, as they ran, beside the standard's float ones of the same size."""

from __future__ import annotations

import math

import msgspec

from unlag.errors import Missing
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence
from unlag.observe.kinds import SHORTEST_MS
from unlag.runtimes.contract import Operator, Profile

_INTEGER = {
    "QLinearConv": "Conv",
    "QLinearSoftmax": "Softmax",
    "QLinearAveragePool": "AveragePool",
    "NhwcMaxPool": "MaxPool",
}
"""Integer kernels, with the float operator that they stand for."""
_FLOAT = {
    "Conv": "Conv",
    "FusedConv": "Conv",
    "NhwcFusedConv": "Conv",
    "Softmax": "Softmax",
    "AveragePool": "AveragePool",
    "MaxPool": "MaxPool",
}
_WEIGHT_INPUT = {"QLinearConv": 3, "Conv": 1, "FusedConv": 1, "NhwcFusedConv": 1}
_CODES = frozenset({"int8", "uint8"})

_Size = tuple[str, tuple[int, ...], int]


class Kernel(msgspec.Struct, frozen=True):
    """One integer operator of the variant, and the mean time of the standard's float ones of its size."""

    name: str
    family: str
    """The float operator's type."""
    group: int
    """Of a convolution; one for everything else."""
    ours_ms: float
    standard_ms: float
    depthwise: bool = False
    """A convolution with one channel in each group."""

    @property
    def ratio(self) -> float:
        """Our time over the standard's."""
        return self.ours_ms / self.standard_ms if self.standard_ms > 0 else math.inf


def integer_kernels(evidence: Evidence, standard: GraphIndex, variant: GraphIndex) -> list[Kernel]:
    """Convolutions, poolings and Softmax of the variant that compute in integers and have a partner in the standard.

    A partner takes long enough to be compared with. Sizes are those of results and weights, in whatever order a layout
    puts their axes. Without profiles there are none.
    """
    ours, theirs = evidence.variant.profile, evidence.standard.profile
    if isinstance(ours, Missing) or isinstance(theirs, Missing):
        return []
    times: dict[_Size, list[float]] = {}
    for operator, _node, size in _sized(theirs, standard, _FLOAT):
        if operator.precision not in _CODES:
            times.setdefault(size, []).append(operator.time_ms)
    found = []
    for operator, node, size in _sized(ours, variant, _INTEGER | {"MaxPool": "MaxPool"}):
        partners = times.get(size)
        if partners is None or (operator.op_type == "MaxPool" and operator.precision not in _CODES):
            continue
        group = node.attributes.get("group", 1) if node is not None else 1
        mean_ms = sum(partners) / len(partners)
        if mean_ms < SHORTEST_MS:
            continue
        groups = group if isinstance(group, int) else 1
        depthwise = size[0] == "Conv" and groups > 1 and _channels_of_group(variant, operator, node) == 1
        found.append(Kernel(operator.name, size[0], groups, operator.time_ms, mean_ms, depthwise))
    return found


def _sized(profile: Profile, index: GraphIndex, families: dict[str, str]) -> list[tuple[Operator, Node | None, _Size]]:
    nodes = {node.name: node for node in index.facts.nodes if node.name}
    found = []
    for operator in profile.operators:
        family, node = families.get(operator.op_type), nodes.get(operator.name)
        if family is None or not operator.output_shapes:
            continue
        elements = _weight_elements(index, operator, node)
        if elements is not None:
            found.append((operator, node, (family, tuple(sorted(operator.output_shapes[0])), elements)))
    return found


def _channels_of_group(index: GraphIndex, operator: Operator, node: Node | None) -> int | None:
    """The second axis of a convolution's constant kernel."""
    position = _WEIGHT_INPUT.get(operator.op_type)
    weight = None if node is None or position is None else index.constant(node.inputs[position])
    return weight.shape[1] if weight is not None and len(weight.shape) > 1 else None


def _weight_elements(index: GraphIndex, operator: Operator, node: Node | None) -> int | None:
    """Elements of a convolution's constant kernel; zero for operators without one, nothing where it is not known."""
    position = _WEIGHT_INPUT.get(operator.op_type)
    if position is None:
        return 0
    weight = None if node is None or len(node.inputs) <= position else index.constant(node.inputs[position])
    return None if weight is None else math.prod(weight.shape)
