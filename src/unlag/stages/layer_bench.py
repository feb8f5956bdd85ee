"""The layers of a float model's file, and models of some of them side by side: what single layers are measured with."""

from __future__ import annotations

import gc
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import onnx_ir as ir

from unlag.measure.bench import Bench
from unlag.model.facts import dtype_name
from unlag.model.graph import insert_node, read_model, save_model
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.rewrites.extract_nodes import computed_inputs, extract_nodes, input_name
from unlag.stages.layers import Layer, PlacedLayer, find_layers
from unlag.stages.quantize import prepare, run_passes, scheme_of
from unlag.stages.schemes import SCHEMES, Precision

FEWEST_SHARE = 0.1
"""Of the layers that must have an operator for a scheme; the others get something in its place."""

_SHAPE = "unlag.shape."


class Read(msgspec.Struct, frozen=True):
    """A tensor that a layer reads."""

    value: str
    """Its name in the model."""
    name: str
    """Its name as an input of a model of layers."""
    dtype: str


class BenchLayer(msgspec.Struct, frozen=True):
    """A layer with what surrounds it."""

    layer: Layer
    operator: str
    """Type and attributes of its node."""
    turned: bool
    """Its weight is stored [out, in]."""
    reads: tuple[Read, ...]
    result: str


@dataclass(frozen=True)
class LayerBench:
    """A float model's layers, tables left out. The models that are made of them are read anew: they are large."""

    variant: Variant
    """The float model."""
    layers: tuple[BenchLayer, ...]
    shapes: dict[str, tuple[int, ...]]
    """Of what layers read, with the timed feed, by the names that it has as inputs."""

    def as_variant(self, path: Path) -> Variant:
        """Another file, run as the float model is, but with all of the runtime's passes."""
        provider = {name: value for name, value in self.variant.options.items() if name == "provider"}
        return Variant(self.variant.runtime, str(path), provider)

    def read(self) -> ir.Model:
        """The float model."""
        return read_model(Path(self.variant.path))

    def place(self, model: ir.Model, wanted: Collection[str]) -> list[PlacedLayer]:
        """The wanted layers in the float model as it was just read, each name once."""
        known = {bench.result: bench.layer for bench in self.layers}
        found: dict[str, PlacedLayer] = {}
        for node in model.graph:
            layer = known.get(str(node.outputs[0].name))
            weight = None if layer is None else next((v for v in node.inputs if v is not None and _is(v, layer)), None)
            if layer is not None and weight is not None and layer.name in wanted:
                found.setdefault(layer.name, PlacedLayer(layer, node, weight))
        return list(found.values())


def _is(value: ir.Value, layer: Layer) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and tuple(tensor.shape) == layer.shape


def open_layers(bench: Bench, float_model: Variant) -> LayerBench:
    """Find the layers of a float model; their shapes are not known yet.

    Raises:
        UsageError: the model can't be read.
    """
    model, standard = read_model(Path(float_model.path)), read_model(Path(bench.case.standard.path))
    found = tuple(_described(placed) for placed in find_layers(model, standard) if placed.layer.kind != "table")
    del model, standard
    gc.collect()  # models refer to themselves in circles
    return LayerBench(float_model, found, {})


def _described(placed: PlacedLayer) -> BenchLayer:
    node = placed.node
    return BenchLayer(
        layer=placed.layer,
        operator=f"{node.op_type} {node.attributes!r}",
        turned=bool(node.attributes.get_int("transB", 0)),
        reads=tuple(
            Read(str(value.name), input_name(value), dtype_name(value.dtype or ir.DataType.FLOAT))
            for value in computed_inputs(node)
        ),
        result=str(node.outputs[0].name),
    )


def all_reads(layers: Iterable[BenchLayer]) -> list[Read]:
    """What layers read, each tensor once."""
    return list(dict.fromkeys(read for layer in layers for read in layer.reads))


def with_shapes(bench: Bench, layers: LayerBench, folder: Path) -> LayerBench:
    """Run the float model once to see the shapes of what its layers read.

    Raises:
        UnlagError: the model can't be run.
    """
    reads = all_reads(layers.layers)
    model = layers.read()
    _expose_shapes(model, [read.value for read in reads])
    exposed = folder / "shapes.onnx"
    save_model(model, exposed)
    del model
    gc.collect()
    with bench.contest({"shapes": layers.variant.at(exposed)}) as contest:
        (answer,) = contest.answers("shapes", [bench.workload.feed])
    exposed.unlink()
    shapes = {read.name: tuple(int(size) for size in answer[f"{_SHAPE}{k}"]) for k, read in enumerate(reads)}
    return replace(layers, shapes=shapes)


def _expose_shapes(model: ir.Model, names: Sequence[str]) -> None:
    values = {str(v.name): v for v in (*model.graph.inputs, *(out for node in model.graph for out in node.outputs))}
    for number, name in enumerate(names):
        reader = next(iter(values[name].uses())).node
        shape = insert_node(reader, "Shape", [values[name]], name=f"{_SHAPE}{number}")
        shape.name, shape.type = f"{_SHAPE}{number}", ir.TensorType(ir.DataType.INT64)
        shape.shape = ir.Shape([None])
        model.graph.outputs.append(shape)


def build_layers(
    layers: LayerBench, wanted: Sequence[str], scheme: Precision, feeds: Sequence[Feed], path: Path
) -> Variant | None:
    """A model of the wanted layers side by side, quantized; nothing where hardly one has an operator for the scheme.

    Args:
        layers: of a float model.
        wanted: names of layers.
        scheme: what they are to be in.
        feeds: what they read, by the names of their inputs; at least one run.
        path: where the model goes.

    Raises:
        UnlagError: a quantizer does not take them.
    """
    held = [bench.layer for bench in layers.layers if bench.layer.name in wanted]
    families = [SCHEMES[scheme_of(layer, scheme, {})].family for layer in held]
    if families.count(SCHEMES[scheme].family) < FEWEST_SHARE * len(families):
        return None
    model = layers.read()
    chosen = layers.place(model, wanted)
    shapes = {name: _common_shape([feed[name].shape for feed in feeds]) for name in feeds[0]}
    extract_nodes(model, [placed.node for placed in chosen], shapes)
    passes = prepare(model, chosen, scheme, {})
    save_model(model, path)
    del model, chosen
    gc.collect()
    run_passes(path, passes, feeds)
    return layers.as_variant(path)


def _common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int | None, ...]:
    """Sizes that all of them have; nothing for those that differ."""
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def place_in_words(bench: BenchLayer, shapes: dict[str, tuple[int, ...]]) -> str:
    """``128x384·384x1536``: rows and columns of both factors, or input and kernel of a convolution."""
    read, weight = shapes[bench.reads[0].name], bench.layer.shape
    if bench.layer.kind != "convolution":
        read = (math.prod(read[:-1]), read[-1])
        weight = tuple(reversed(weight)) if bench.turned else weight
    return f"{'x'.join(map(str, read))}·{'x'.join(map(str, weight))}"


def work_of(bench: BenchLayer, shapes: dict[str, tuple[int, ...]]) -> float:
    """Multiplications, but for a factor that layers of a kind share."""
    read = shapes[bench.reads[0].name]
    rows = math.prod(read[2:]) * read[0] if bench.layer.kind == "convolution" else math.prod(read[:-1])
    return float(max(1, rows) * bench.layer.elements)
