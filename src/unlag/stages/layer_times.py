"""Layers raced with their own kernels: one small model a scheme, of every distinct layer, in one contest.

Which kernel a runtime has for a scheme, and what it costs at a shape, is not known beforehand; whole models in every
scheme would take minutes. So each distinct layer (with its neighbors that read the same tensor) goes once into a model
of its own inputs, and a profile splits its time. Times of single layers mislead, so they only choose what is tried.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from unlag.errors import UnlagError
from unlag.measure.bench import Bench, quick
from unlag.measure.contest import Contest
from unlag.model.graph import read_model
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed
from unlag.runtimes.contract import Profile
from unlag.stages.fixed import Rejected
from unlag.stages.layer_bench import BenchLayer, LayerBench, all_reads, build_layers, place_in_words, work_of
from unlag.stages.layer_facts import LayerFacts
from unlag.stages.schemes import Precision

FIRST: tuple[Precision, ...] = (
    "weight_int8", "dynamic_int8", "dynamic_uint8", "dynamic_int8_tensor", "static_int8", "blocks_int8", "blocks_int4",
)  # fmt: skip
"""Schemes with kernels of their own."""

ROUNDS = 5
"""Profiles of each scheme, taken in turns; the least time of each operator counts."""
PROFILED_RUNS = 5
WARMUP_S = 0.3
MOST_BYTES = 256_000_000
"""Of the inputs that are timed; what does not fit has the ratio of the largest of its kind that does."""

_AT_BORDERS = frozenset({"QuantizeLinear", "DequantizeLinear", "ReorderInput", "ReorderOutput", "Transpose"})
"""In a chain of convolutions codes and layouts are kept from one to the next."""


_Times = dict[Precision, dict[str, float]]


@dataclass(frozen=True)
class _Site:
    """Layers that read one tensor, and stand for all groups of layers like them."""

    members: list[BenchLayer]
    like: list[str]
    """Names of all layers that the site stands for, in the same order in every group."""


def time_layers(bench: Bench, layers: LayerBench, schemes: Sequence[Precision], at_once: int) -> LayerFacts:
    """Race the schemes; what can't be built or run is said.

    Args:
        bench: whose cores and threads are used.
        layers: of a float model.
        schemes: to race beside float32.
        at_once: how many processes fit into memory.
    """
    facts = LayerFacts(
        layers=tuple(member.layer for member in layers.layers),
        places={member.layer.name: place_in_words(member, layers.shapes) for member in layers.layers},
        times_ms={},
    )
    sites, others = _sites(layers)
    if not sites:
        return facts
    with tempfile.TemporaryDirectory(prefix="unlag-") as name:
        folder = Path(name)
        feed = _random_feed(sites, layers.shapes)
        contenders, failed = _build_all(layers, sites, schemes, feed, folder)
        times: _Times = {}
        groups = _grouped([s for s in contenders if s != "float32"], max(1, at_once - 1))
        for number, group in enumerate(groups):
            part = bench.within(number / len(groups), (number + 1) / len(groups))
            chosen = {name: contenders[name] for name in ("float32", *group)}
            found, broken = _race(part, chosen, sites, feed)
            times = _joined(times, found)
            failed += broken
    for held in times.values():
        held |= {name: held[like] * factor for name, like, factor in others if like in held}
    return msgspec.structs.replace(facts, times_ms=times, failed=tuple(failed))


def _joined(times: _Times, found: _Times) -> _Times:
    """Times of another group, brought to the first one's by float32, which raced in both."""
    if "float32" not in times or "float32" not in found:
        return {**found, **times}
    factor = sum(times["float32"].values()) / sum(found["float32"].values())
    scaled = {name: {layer: ms * factor for layer, ms in held.items()} for name, held in found.items()}
    return {**scaled, **times}


def _sites(layers: LayerBench) -> tuple[list[_Site], list[tuple[str, str, float]]]:
    """Distinct groups, those with most work first; and for what does not fit: layer, layer like it, factor."""
    shapes = layers.shapes
    groups: dict[str, list[BenchLayer]] = {}
    for member in layers.layers:
        groups.setdefault(member.reads[0].name, []).append(member)
    sites: dict[object, _Site] = {}
    for group in groups.values():
        key = tuple((place_in_words(member, shapes), member.operator) for member in group)
        site = sites.setdefault(key, _Site(group, []))
        site.like.extend(member.layer.name for member in group)
    kept: list[_Site] = []
    others: list[tuple[str, str, float]] = []
    held_bytes = 0
    for site in sorted(sites.values(), key=lambda site: -sum(work_of(m, shapes) for m in site.members)):
        own_bytes = sum(4 * math.prod(shapes[read.name]) for read in all_reads(site.members))
        twin = next((k.members[0] for k in kept if k.members[0].layer.kind == site.members[0].layer.kind), None)
        if twin is None or held_bytes + own_bytes <= MOST_BYTES:
            kept.append(site)
            held_bytes += own_bytes
            continue
        for number, name in enumerate(site.like):
            member = site.members[number % len(site.members)]
            others.append((name, twin.layer.name, work_of(member, shapes) / work_of(twin, shapes)))
    return kept, others


def _random_feed(sites: Sequence[_Site], shapes: Mapping[str, tuple[int, ...]]) -> Feed:
    """Values that look like activations: no kernel here depends on them."""
    rng = np.random.default_rng(0)
    feed: dict[str, Array] = {}
    for read in all_reads(member for site in sites for member in site.members):
        shape = shapes[read.name]
        is_float = read.dtype == "float32"
        feed[read.name] = rng.standard_normal(shape).astype(np.float32) if is_float else np.ones(shape, read.dtype)
    return feed


def _build_all(
    layers: LayerBench, sites: Sequence[_Site], schemes: Sequence[Precision], feed: Feed, folder: Path
) -> tuple[dict[Precision, Variant], list[Rejected]]:
    wanted = [member.layer.name for site in sites for member in site.members]
    contenders: dict[Precision, Variant] = {}
    failed = []
    for scheme in ("float32", *schemes):
        try:
            made = build_layers(layers, wanted, scheme, [feed], folder / f"{scheme}.onnx")
        except UnlagError as error:
            failed.append(Rejected(scheme, error.message))
            continue
        if made is not None:
            contenders[scheme] = made
    return contenders, failed


def _grouped(names: Sequence[Precision], most: int) -> list[list[Precision]]:
    return [list(names[start : start + most]) for start in range(0, len(names), most)]


def _race(
    bench: Bench, contenders: dict[Precision, Variant], sites: Sequence[_Site], feed: Feed
) -> tuple[_Times, list[Rejected]]:
    """Times of each layer by scheme, from profiles taken in turns."""
    protocol = msgspec.structs.replace(quick(bench.protocol, 1), launches=1, warmup_limit_s=WARMUP_S)
    profiles: dict[Precision, list[Profile]] = {name: [] for name in contenders}
    graphs: dict[Precision, ir.Model] = {}
    failed = []
    named: dict[str, Variant] = {str(name): variant for name, variant in contenders.items()}
    with Contest(named, feed, cores=bench.cores, threads=bench.threads, protocol=protocol) as contest:
        for turn in range(ROUNDS):
            bench.progress(f"timing single layers in {len(contenders)} schemes", turn / ROUNDS)
            for name in list(profiles):
                try:
                    profile, executed = _profile(contest, name)
                except UnlagError as error:
                    failed.append(Rejected(name, f"it does not run: {error.message}"))
                    contest.drop(name)
                    del profiles[name]
                    continue
                profiles[name].append(profile)
                graphs.setdefault(name, executed)
    return {name: _split(_least_ms(taken), graphs[name], sites) for name, taken in profiles.items()}, failed


def _profile(contest: Contest, name: str) -> tuple[Profile, ir.Model]:
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
        made = contest.profile(name, PROFILED_RUNS, Path(folder))
        if made.executed is None:
            raise UnlagError(made.executed_missing)
        return made.profile, read_model(Path(made.executed))


def _least_ms(profiles: Sequence[Profile]) -> dict[str, float]:
    """The least time of each operator: single ones take so little that others' work falls on some runs only."""
    least: dict[str, float] = {}
    for profile in profiles:
        for operator in profile.operators:
            least[operator.name] = min(operator.time_ms, least.get(operator.name, math.inf))
    return least


def _split(spent_ms: Mapping[str, float], executed: ir.Model, sites: Sequence[_Site]) -> dict[str, float]:
    """Each layer's operators are those that its result is made by; what several need is shared among them."""
    made = {str(value.name): value for value in executed.graph.outputs}
    ways: dict[str, set[str]] = {}
    for member in (member for site in sites for member in site.members):
        nodes = _nodes_behind(made[member.result])
        borders = _AT_BORDERS if member.layer.kind == "convolution" else frozenset()
        ways[member.layer.name] = {str(node.name) for node in nodes if node.op_type not in borders}
    readers = Counter(node for way in ways.values() for node in way)
    own = {layer: sum(spent_ms.get(node, 0.0) / readers[node] for node in way) for layer, way in ways.items()}
    return {
        name: own[site.members[number % len(site.members)].layer.name]
        for site in sites
        for number, name in enumerate(site.like)
    }


def _nodes_behind(value: ir.Value) -> list[ir.Node]:
    """All nodes that a value is made by."""
    waiting: list[ir.Value] = [value]
    found: dict[ir.Node, None] = {}
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node not in found:
            found[node] = None
            waiting += [v for v in node.inputs if v is not None]
    return list(found)
