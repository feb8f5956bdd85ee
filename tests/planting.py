"""Small models to plant causes in, and the evidence that diagnosis is made from, gathered in this process."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from unlag.demo.bert import BertConfig, build_bert_from, random_weights
from unlag.demo.flash import NOTHING, FlashRecipe, make_flash
from unlag.errors import Missing, UsageError
from unlag.measure.host import Host, read_host
from unlag.measure.sketch import TensorSketch, sketch_of
from unlag.measure.statistics import Interval
from unlag.model.facts import facts_of
from unlag.model.graph import read_model
from unlag.model.variant import Variant
from unlag.observe.align import align_weights
from unlag.observe.evidence import Claim, Evidence, Side
from unlag.observe.gather import with_values
from unlag.rewrites.expose_tensors import expose_tensors
from unlag.runtimes.contract import Profile
from unlag.runtimes.onnxruntime import RUNTIME

LAYERS, HEADS, HIDDEN = 2, 4, 64
CONFIG = BertConfig(80, HIDDEN, LAYERS, HEADS, 2 * HIDDEN, 32)

OLD_X86 = ("avx2", "f16c", "fma")
"""No float16 arithmetic, no int8 dot product."""
NEW_X86 = ("avx2", "avx512_fp16", "avx512_vnni", "avx512f", "f16c", "fma")
OFF = {"optimization": "off"}


class Times(NamedTuple):
    """What the contest measured of a side, in milliseconds."""

    latency_ms: float = 1.0
    load_ms: float = 0.0
    first_run_ms: float = 0.0


class Pair(NamedTuple):
    """A standard and a variant, with what else a diagnosis looks at."""

    standard: onnx.ModelProto
    standard_options: dict[str, str]
    variant: onnx.ModelProto
    variant_options: dict[str, str]
    isa: tuple[str, ...] = OLD_X86
    standard_profile: Profile | Missing = Missing("not profiled")
    variant_profile: Profile | Missing = Missing("not profiled")
    feed: dict[str, np.ndarray] | None = None
    """``tiny_feed()`` where there is none."""
    profiled: bool = False
    """Profile both sides for real, in this process."""
    claim: Claim | None = None
    standard_times: Times = Times()
    variant_times: Times = Times()


@cache
def tiny_bert(seed: int = 0) -> onnx.ModelProto:
    # Weights ten times BERT's initial ones, so that attention is not flat; some columns wider than the others.
    rng = np.random.default_rng(seed)
    weights = {}
    for name, array in random_weights(CONFIG, seed).items():
        wide = array.ndim == 2 and "encoder" in name
        columns = np.where(rng.random((array.shape[0], 1)) < 0.1, 8.0, 1.0) if wide else 1.0
        weights[name] = (array * 10 * columns if wide else array).astype(np.float32)
    return build_bert_from(CONFIG, weights)


@cache
def tiny_cnn(seed: int = 0) -> onnx.ModelProto:
    """Image in, 10 classes out: three 3x3 convolutions with Relu, one depthwise, pooling, Gemm."""
    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def constant(name: str, *shape: int) -> str:
        scale = 1.0 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5
        weights.append(onnx.numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name))
        return name

    def convolve(source: str, name: str, inputs: int, outputs: int, group: int = 1) -> str:
        kernel = [source, constant(f"{name}.weight", outputs, inputs // group, 3, 3), constant(f"{name}.bias", outputs)]
        nodes.append(helper.make_node("Conv", kernel, [f"{name}.out"], name, group=group, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"{name}.out"], [f"{name}.relu"], f"{name}.activation"))
        return f"{name}.relu"

    x = convolve("image", "first", 3, 16)
    x = convolve(x, "second", 16, 32)
    x = convolve(x, "depthwise", 32, 32, group=32)
    x = convolve(x, "third", 32, 32)
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    head = ["flat", constant("head.weight", 32, 10), constant("head.bias", 10)]
    nodes.append(helper.make_node("Gemm", head, ["logits"], "head"))
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 3, 24, 24])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "cnn", [image], [logits], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def cnn_feed(batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((batch, 3, 24, 24)).astype(np.float32)}


def flash(**traits: bool) -> onnx.ModelProto:
    recipe: FlashRecipe = msgspec.structs.replace(NOTHING, **traits)
    return make_flash(tiny_bert(), recipe)


def editable(model: onnx.ModelProto) -> ir.Model:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return ir.from_proto(copy)


def tiny_feed(batch: int = 2, sequence: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.ones((batch, sequence), np.int64)
    for row in range(1, batch):
        mask[row, sequence - row - 1 :] = 0
    return {
        "input_ids": rng.integers(0, CONFIG.vocab_size, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }


def fake_host(isa: tuple[str, ...], architecture: str = "x86_64") -> Host:
    host = read_host()
    return msgspec.structs.replace(host, cpu=msgspec.structs.replace(host.cpu, isa=isa, architecture=architecture))


def gather_evidence(pair: Pair) -> Evidence:
    feed = tiny_feed() if pair.feed is None else pair.feed
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        standard = _side(pair, pair.standard, pair.standard_options, pair.standard_profile, folder / "standard")
        variant = _side(pair, pair.variant, pair.variant_options, pair.variant_profile, folder / "variant")
    evidence = Evidence(
        host=fake_host(pair.isa),
        standard=msgspec.structs.replace(standard, **pair.standard_times._asdict()),
        variant=msgspec.structs.replace(variant, **pair.variant_times._asdict()),
        gap_ms=Interval(1.0, 0.9, 1.1),
        accuracy_change=Interval(-1.0, -1.5, -0.5),
        weights=align_weights(editable(pair.standard), editable(pair.variant)),
        input_shapes={name: array.shape for name, array in feed.items()},
        threads=1,
        claim=pair.claim,
    )
    return with_values(evidence, sketches_of(pair.standard, feed), sketches_of(pair.variant, feed))


def sketches_of(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, TensorSketch] | Missing:
    """What ``sketch_tensors`` gives, from this process."""
    exposed = editable(model)
    names = expose_tensors(exposed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exposed.onnx"
        ir.save(exposed, path)
        try:
            session = RUNTIME.open(Variant("onnxruntime", str(path), OFF), 1)
            arrays = session.run({info.name: feed[info.name] for info in session.signature.inputs}, names)
        except UsageError as error:
            return Missing(error.message)
    return {name: sketch for name, array in arrays.items() if (sketch := sketch_of(array)) is not None}


def _side(
    pair: Pair, model: onnx.ModelProto, options: dict[str, str], profile: Profile | Missing, folder: Path
) -> Side:
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, path)
    variant = Variant("onnxruntime", str(path), options)
    executed = RUNTIME.executed_graph(variant, 1, folder)
    if pair.profiled:
        profile = RUNTIME.profile(variant, 1, tiny_feed() if pair.feed is None else pair.feed, 3)
    return Side(
        variant=variant,
        graph=facts_of(read_model(path)),
        executed=executed if isinstance(executed, Missing) else facts_of(read_model(executed)),
        profile=profile,
        placement=Missing("not placed"),
        latency_ms=1.0,
    )
