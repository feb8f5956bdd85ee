"""Quantizes a model layer by layer: weights in the graph, then ONNX Runtime's quantizers on the file, one by one."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from unlag.errors import UsageError
from unlag.model.graph import add_constant, external_files, read_model
from unlag.model.workload import Feed
from unlag.rewrites.own_inputs import own_inputs
from unlag.rewrites.quantize_blocks import quantize_blocks
from unlag.rewrites.quantize_dynamic import quantize_dynamic
from unlag.rewrites.quantize_static import quantize_static
from unlag.rewrites.quantize_weights import quantize_weights
from unlag.rewrites.split_gemm import split_gemm
from unlag.stages.layers import Layer, PlacedLayer, covers, overlap
from unlag.stages.schemes import SCHEMES, Family, Precision, Scheme, fitting, most_careful

Schemes = Mapping[str, Precision]
"""Schemes of layers by name."""

_SPLITTING: frozenset[Family] = frozenset({"dynamic", "blocks"})
_ORDER: tuple[Family, ...] = ("static", "dynamic", "blocks")
"""Static first: its calibration runs are those of the float model. Later quantizers use the codes that are there."""


_ADDED_BY_RUNTIME = ("LayerNormalization", "SimplifiedLayerNormalization")
"""Operators that ONNX Runtime has in the standard's domain where the standard has none of that name, or not yet."""


@dataclass(frozen=True)
class Passes:
    """What the quantizers have to do, by names of nodes."""

    nodes: dict[Precision, list[str]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    """Nodes that take rows of a table: uint8 with one scale, in whatever dynamic pass comes first."""
    floats: list[str] = field(default_factory=list)
    """Nodes of layers that stay in the graph's own numbers."""
    convolutional: bool = False
    """Whether convolutions get fixed scales: everything between them is quantized as well then."""


def scheme_of(layer: Layer, precision: Precision, schemes: Schemes) -> Precision:
    """The layer's scheme: the most careful of its parts', or what fits in its place."""
    return fitting(most_careful(_of_part(part, precision, schemes) for part in layer.parts), layer.kind)


def _of_part(part: str, precision: Precision, schemes: Schemes) -> Precision:
    """The scheme of a weight that has all of the part's columns, or the most careful of those that have some."""
    whole = next((scheme for name, scheme in schemes.items() if covers(name, part)), None)
    if whole is not None:
        return whole
    return most_careful([precision, *(scheme for name, scheme in schemes.items() if overlap(name, part))])


def prepare(model: ir.Model, layers: Sequence[PlacedLayer], precision: Precision, schemes: Schemes) -> Passes:
    """Make the graph ready for the quantizers; weights that are only stored as integers are done with that."""
    _name_nodes(model)
    chosen = [(placed, SCHEMES[scheme_of(placed.layer, precision, schemes)]) for placed in layers]
    by_family: dict[Family, list[PlacedLayer]] = {}
    for placed, scheme in chosen:
        by_family.setdefault(scheme.family, []).append(placed)
    quantize_weights(model, [placed.node for placed in by_family.get("weights", [])])
    renamed = split_gemm(model) if not _SPLITTING.isdisjoint(by_family) else {}
    static = [placed for placed in by_family.get("static", []) if placed.layer.kind in {"product", "convolution"}]
    convolutional = any(placed.layer.kind == "convolution" for placed in static)
    passes = Passes(convolutional=convolutional)
    for placed, scheme in chosen:
        name = renamed.get(str(placed.node.name), str(placed.node.name))
        if scheme.family == "dynamic" and placed.layer.kind == "table":
            passes.tables.append(name)
        elif scheme.family in {"float", "half", "weights"}:
            passes.floats.append(name)
        else:
            passes.nodes.setdefault(scheme.name, []).append(name)
        if scheme.family == "dynamic" and placed.layer.kind == "attention":
            _give_bias(model.graph, placed.node)
    if static and not convolutional:
        names = {name for scheme, held in passes.nodes.items() if SCHEMES[scheme].family == "static" for name in held}
        own_inputs(model, {node for node in model.graph if node.name in names})
    return passes


def _name_nodes(model: ir.Model) -> None:
    """Names that tell nodes apart: the quantizers know nodes by them."""
    counts = Counter(node.name for node in model.graph)
    taken = set(counts)
    for node in model.graph:
        if node.name and counts[node.name] == 1:
            continue
        base, number = f"{node.op_type}.{node.outputs[0].name}", 1
        name = base
        while name in taken:
            number += 1
            name = f"{base}.{number}"
        node.name = name
        taken.add(name)


def _give_bias(graph: ir.Graph, node: ir.Node) -> None:
    """The quantizer of Attention takes a bias for granted."""
    weight = ir.convenience.get_const_tensor(node.inputs[1]) if node.inputs[1] is not None else None
    if weight is None or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    columns = int(weight.shape.numpy()[-1])
    node.replace_input_with(2, add_constant(graph, np.zeros(columns, np.float32), f"{node.name}.bias"))


def run_passes(path: Path, passes: Passes, feeds: Sequence[Feed]) -> None:
    """Quantize a file in place.

    Raises:
        UsageError: a quantizer does not take the model; or static scales are wanted, and there is nothing to run.
    """
    waiting = sorted(passes.nodes, key=lambda name: _ORDER.index(SCHEMES[name].family))
    if passes.tables and not any(SCHEMES[name].family == "dynamic" for name in waiting):
        place = sum(SCHEMES[name].family == "static" for name in waiting)
        waiting.insert(place, "dynamic_int8")
    tables = list(passes.tables)
    gc.collect()  # quantizers and models refer to themselves in circles, and each holds all weights
    for name in waiting:
        scheme = SCHEMES[name]
        nodes = list(passes.nodes.get(name, []))
        if scheme.family == "dynamic":
            nodes += tables
            tables = []
        _run(path, scheme, nodes, passes, feeds)
        gc.collect()
    if waiting:
        _check(path)


def _check(path: Path) -> None:
    try:
        onnx.checker.check_model(path, full_check=False)
    except onnx.checker.ValidationError as error:
        fault = str(error).strip().splitlines()[0]
        if any(f"No Op registered for {name} " in fault for name in _ADDED_BY_RUNTIME):
            return  # only the runtime knows whether it is valid, and opens it next
        raise UsageError(f"a quantizer wrote no valid model: {fault}") from error


def _run(path: Path, scheme: Scheme, nodes: list[str], passes: Passes, feeds: Sequence[Feed]) -> None:
    """One pass, in place; what it reads is left nowhere."""
    source = path.with_suffix(".before.onnx")
    held = external_files(read_model(path))
    path.replace(source)
    try:
        _quantize(source, path, scheme, nodes, passes, feeds)
    finally:
        source.unlink(missing_ok=True)
        kept = external_files(read_model(path)) if held and path.exists() else set()
        for name in held - kept:
            (path.parent / name).unlink(missing_ok=True)


def _quantize(  # noqa: PLR0913, PLR0917 - what a pass is
    source: Path, target: Path, scheme: Scheme, nodes: list[str], passes: Passes, feeds: Sequence[Feed]
) -> None:
    match scheme.family:
        case "static":
            if not feeds:
                raise UsageError("static scales need runs to take them from, and the workload has none")
            others = [*passes.floats, *(n for name, held in passes.nodes.items() if name != scheme.name for n in held)]
            quantize_static(
                source,
                target,
                feeds,
                nodes=nodes,
                calibration=scheme.calibration or "minmax",
                per_channel=scheme.by_column,
                reduce_range=scheme.seven_bits,
                excluded=others if passes.convolutional else None,
            )
        case "dynamic":
            quantize_dynamic(
                source,
                target,
                nodes=nodes,
                per_channel=scheme.by_column,
                reduce_range=scheme.seven_bits,
                unsigned=scheme.unsigned,
            )
        case _:
            quantize_blocks(source, target, nodes=nodes, bits=scheme.bits)
