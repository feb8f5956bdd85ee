"""What layers lose: the error of each one's codes on what it really reads, and how much an error there matters."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from unlag.errors import UnlagError
from unlag.measure.bench import Bench, quick
from unlag.measure.contest import Contest
from unlag.model.graph import save_model
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed
from unlag.rewrites.perturb_values import AMOUNTS, perturb_values
from unlag.stages.fixed import Rejected
from unlag.stages.layer_bench import BenchLayer, LayerBench, all_reads, build_layers
from unlag.stages.layer_facts import LayerFacts
from unlag.stages.schemes import Precision

RECORDED_FEEDS = 4
"""Calibration runs whose inner tensors are kept."""

PART_BYTES = 128_000_000
"""Float weights that are quantized at once: a quantizer holds several copies of them."""

NOISE = 0.03
"""Noise put on a layer's result, as a share of its root mean square: about what 8 bits lose."""


def layer_errors(bench: Bench, layers: LayerBench, schemes: Sequence[Precision], facts: LayerFacts) -> LayerFacts:
    """The facts with each layer's error in each of the schemes, on what layers read in a few calibration runs.

    Raises:
        UnlagError: the float layers themselves can't be run.
    """
    errors: dict[Precision, dict[str, float]] = {name: dict(held) for name, held in facts.errors.items()}
    failed = list(facts.failed)
    with tempfile.TemporaryDirectory(prefix="unlag-") as name:
        folder = Path(name)
        feeds = _record(bench, layers, folder)
        parts = _parts(layers)
        for number, part in enumerate(parts):
            progress = bench.within(number / len(parts), (number + 1) / len(parts))
            found, broken = _errors_of(progress, layers, part, schemes, feeds, folder)
            for scheme, held in found.items():
                errors.setdefault(scheme, {}).update(held)
            failed += [reject for reject in broken if reject not in failed]
    complete = {name: held for name, held in errors.items() if name not in {reject.remedy for reject in failed}}
    return msgspec.structs.replace(facts, errors=complete, failed=tuple(failed))


def _parts(layers: LayerBench) -> list[list[BenchLayer]]:
    """Layers in groups whose float weights fit into memory several times."""
    parts: list[list[BenchLayer]] = [[]]
    held_bytes = 0
    for member in layers.layers:
        own_bytes = 4 * member.layer.elements
        if parts[-1] and held_bytes + own_bytes > PART_BYTES:
            parts.append([])
            held_bytes = 0
        parts[-1].append(member)
        held_bytes += own_bytes
    return parts


def _errors_of(  # noqa: PLR0913, PLR0917 - a measurement has these parts
    bench: Bench,
    layers: LayerBench,
    part: Sequence[BenchLayer],
    schemes: Sequence[Precision],
    recorded: Sequence[Feed],
    folder: Path,
) -> tuple[dict[Precision, dict[str, float]], list[Rejected]]:
    names = [member.layer.name for member in part]
    feeds = [{read.name: feed[read.name] for read in all_reads(part)} for feed in recorded]
    plain = build_layers(layers, names, "float32", feeds, folder / "float32.onnx")
    errors: dict[Precision, dict[str, float]] = {}
    failed: list[Rejected] = []
    if plain is None:
        return errors, failed
    right = _answers(bench, plain, feeds)
    for number, scheme in enumerate(schemes):
        bench.progress(f"what single layers lose in {scheme}", number / len(schemes))
        path = folder / f"{scheme}.onnx"
        try:
            made = build_layers(layers, names, scheme, feeds, path)
            if made is not None:
                errors[scheme] = _compare(part, right, _answers(bench, made, feeds))
        except UnlagError as error:
            failed.append(Rejected(scheme, error.message))
        path.unlink(missing_ok=True)
    return errors, failed


def _some_feeds(bench: Bench, count: int) -> list[Feed]:
    """Calibration runs, evenly spaced."""
    feeds = bench.workload.calibration or bench.workload.agreement or (bench.workload.feed,)
    return [feeds[index] for index in np.unique(np.linspace(0, len(feeds) - 1, count).astype(int))]


def _record(bench: Bench, layers: LayerBench, folder: Path) -> list[Feed]:
    """What the layers read in a few calibration runs of the whole float model, by the names of their own inputs."""
    reads = all_reads(layers.layers)
    model = layers.read()
    wanted = {read.value for read in reads}
    for value in [out for node in model.graph for out in node.outputs if out.name in wanted]:
        if not value.is_graph_output():
            model.graph.outputs.append(value)
    path = folder / "recorded.onnx"
    save_model(model, path)
    del model
    gc.collect()
    feeds = _some_feeds(bench, RECORDED_FEEDS)
    answers = _answers(bench, layers.as_variant(path), feeds)
    path.unlink()
    everything = [{**feed, **answer} for feed, answer in zip(feeds, answers, strict=True)]
    return [{read.name: arrays[read.value] for read in reads} for arrays in everything]


def _answers(bench: Bench, variant: Variant, feeds: Sequence[Feed]) -> list[Feed]:
    """All outputs for feeds of any shapes."""
    protocol = msgspec.structs.replace(quick(bench.protocol, 1), launches=1, warmup_limit_s=0.0)
    with Contest({"layers": variant}, feeds[0], cores=bench.cores, threads=bench.threads, protocol=protocol) as contest:
        return contest.answers("layers", feeds)


def _compare(part: Sequence[BenchLayer], right: Sequence[Feed], found: Sequence[Feed]) -> dict[str, float]:
    return {
        member.layer.name: _relative([(a[member.result], b[member.result]) for a, b in zip(right, found, strict=True)])
        for member in part
        if member.result in right[0]
    }


def _relative(pairs: Sequence[tuple[Array, Array]]) -> float:
    """Root mean square of the difference over that of the right values."""
    wrong, whole = 0.0, 0.0
    for right, found in pairs:
        wide = right.astype(np.float64)
        wrong += float(np.square(found.astype(np.float64) - wide).sum())
        whole += float(np.square(wide).sum())
    return float(np.sqrt(wrong / whole)) if whole else 0.0


def layer_gains(bench: Bench, layers: LayerBench) -> dict[str, float]:
    """How much of an error in a layer's result arrives at the outputs: relative error there, over relative error here.

    Measured by noise on one layer after the other. A layer whose result nobody reads inside of the graph has gain 1.

    Raises:
        UnlagError: the model with noise can't be run.
    """
    model = layers.read()
    gains = {member.layer.name: 1.0 for member in layers.layers}
    inner = [p for p in layers.place(model, gains.keys()) if not p.node.outputs[0].is_graph_output()]
    if not inner:
        return gains
    perturb_values(model, [p.node.outputs[0] for p in inner])
    amounts = NOISE * np.eye(len(inner), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
        path = Path(folder) / "noisy.onnx"
        save_model(model, path)
        names = [p.layer.name for p in inner]
        del model, inner
        gc.collect()
        feeds = _some_feeds(bench, 2)
        noisy = layers.as_variant(path)
        protocol = msgspec.structs.replace(quick(bench.protocol, 1), launches=1, warmup_limit_s=0.0)
        first = {**feeds[0], AMOUNTS: np.zeros(len(names), np.float32)}
        with Contest({"n": noisy}, first, cores=bench.cores, threads=bench.threads, protocol=protocol) as contest:
            right = contest.answers("n", [{**feed, AMOUNTS: first[AMOUNTS]} for feed in feeds])
            for number, (layer, row) in enumerate(zip(names, amounts, strict=True)):
                bench.progress("how much each layer matters", number / len(names))
                found = contest.answers("n", [{**feed, AMOUNTS: row} for feed in feeds])
                gains[layer] = _relative(_float_pairs(right, found)) / NOISE
    return gains


def _float_pairs(
    right: Sequence[Mapping[str, Array]], found: Sequence[Mapping[str, Array]]
) -> list[tuple[Array, Array]]:
    return [
        (a[name], b[name])
        for a, b in zip(right, found, strict=True)
        for name in a
        if a[name].dtype.kind == "f" and name in b
    ]
