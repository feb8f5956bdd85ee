"""Any model that a user brings: it is read, changed, saved, explained, or refused in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from google.protobuf.message import EncodeError

import decoder_kinds  # noqa: F401 - adds its models to KINDS
import model_exports  # noqa: F401 - the same
import quantized_kinds  # noqa: F401 - the same
from measure.scripted import hurry, quiet
from model_kinds import KINDS, WIDTH, Feed, Kind, numbers, read, twice_the_same_node_name
from planting import Pair, gather_evidence
from unlag import pipeline
from unlag.causes.contract import Remedy, diagnose, find_causes
from unlag.errors import UsageError
from unlag.model.case import Case
from unlag.model.draft import OnnxDraft, open_draft
from unlag.model.facts import facts_of
from unlag.model.graph import read_model, save_model
from unlag.model.normal_form import normal_form
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.observe.align import align_weights
from unlag.observe.evidence import Evidence
from unlag.report.record import to_json
from unlag.rewrites.stored_weights import read_weights
from unlag.runtimes.onnxruntime import RUNTIME

CAUSES = {cause.id: cause for cause in find_causes()}
REMEDIES = {remedy.id: remedy for cause in CAUSES.values() for remedy in cause.remedies if remedy.safety != "ADVICE"}
LOOSE = 0.03
"""Of the largest output: remedies that are not exact may round."""


@cache
def built(name: str) -> Kind:
    return KINDS[name]()


def normal(name: str) -> onnx.ModelProto:
    """The model as it is read: ``gather_evidence`` takes no sparse weights."""
    copy = onnx.ModelProto()
    copy.CopyFrom(built(name).model)
    return normal_form(copy)


def answers(path: Path, feed: Feed, **options: str) -> list[np.ndarray]:
    session = RUNTIME.open(Variant("onnxruntime", str(path), options), 1)
    return list(session.run(feed).values())


def written(name: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(built(name).model, path)
    return path


def same(ours: object, theirs: object) -> None:
    """Equal outputs, texts, sequences and maps included."""
    np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_read_and_saved_as_it_is(name, tmp_path):
    path = written(name, tmp_path)
    model = read_model(path)
    facts = facts_of(model)
    (tmp_path / "saved").mkdir()
    copy = tmp_path / "saved" / "copy.onnx"
    save_model(model, copy)
    feed = built(name).feed
    same(answers(copy, feed, optimization="off"), answers(path, feed, optimization="off"))
    same(answers(copy, feed), answers(path, feed))
    assert msgspec.json.encode(facts_of(read_model(copy))) == msgspec.json.encode(facts)  # NaN equals NaN here
    outputs = [out for node in facts.nodes for out in node.outputs if out]
    produced = set(outputs)
    assert len(outputs) == len(produced), "two bodies may use one name, facts do not"
    known = produced | set(facts.constants) | {info.name for info in facts.inputs} | {""}
    assert {i for node in facts.nodes for i in node.inputs if node.depth == 0} <= known


@cache
def evidence_of(name: str) -> Evidence:
    model = normal(name)
    return gather_evidence(Pair(model, {}, model, {}, feed=built(name).feed))


@pytest.mark.parametrize("name", KINDS)
def test_a_model_against_itself_has_no_cause(name):
    evidence = evidence_of(name)
    found = {id_: diagnose(evidence, cause) for id_, cause in CAUSES.items()}
    assert {id_: f.reason for id_, f in found.items() if f.status in {"found", "failed"}} == {}


@pytest.mark.parametrize("name", KINDS)
def test_weights_are_found_in_the_same_model(name):
    model = ir.from_proto(normal(name))
    weights = {str(w.read.name) for w in read_weights(model) if w.matrix() is not None}
    assert set(align_weights(model, model)) == weights


def drafted(path: Path) -> OnnxDraft:
    variant = Variant("onnxruntime", str(path))
    return open_draft(variant, variant)


def contents(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


ON_A_DEVICE = {"compute_in_bfloat16", "compute_in_float16", "compute_in_float16_but_sums"}
"""Remedies for a GPU. The CPU opens no bfloat16, and the library's converter mixes types beside 4- and 8-bit weights:
such a candidate does not open, and a search rejects it with the runtime's words."""


def fault_of(remedy: Remedy, path: Path, feed: Feed) -> str:
    """What a remedy does wrong to a model; nothing where it does nothing, or what it must."""
    draft = drafted(path)
    facts_of(draft.model)  # onnx_ir names the tensors of Constant nodes when they are first looked at
    before = contents(draft.model)
    try:
        changed = remedy.apply(draft)
    except UsageError as error:
        return "" if "does not take this model" in error.message else error.message
    if not changed:
        return "" if contents(draft.model) == before else "changed something that it does not count"
    if remedy.apply(draft):
        return "finds more to do the second time"
    copy = Path(draft.save(path.with_name("copy.onnx")).path)
    if remedy.id in ON_A_DEVICE:
        return ""
    ours, theirs = answers(copy, feed), answers(path, feed)
    for our, their in zip(ours, theirs, strict=True):
        if isinstance(their, np.ndarray) and their.dtype.kind == "f":
            error = np.abs(our - their).max(initial=0) / max(np.abs(their).max(initial=0), 1e-6)
            if our.dtype != their.dtype or error > LOOSE:
                return f"outputs are off by {error:.2g}, {our.dtype} for {their.dtype}"
    return ""


@pytest.mark.parametrize("name", KINDS)
def test_remedies_leave_a_model_whole(name, tmp_path):
    path, faults = written(name, tmp_path), {}
    for id_, remedy in REMEDIES.items():
        try:
            faults[id_] = fault_of(remedy, path, built(name).feed)
        except Exception as error:  # noqa: BLE001 - all of them are to be seen
            faults[id_] = f"{type(error).__name__}: {error}"
    assert {id_: fault for id_, fault in faults.items() if fault} == {}


EXPLAINED = (
    "decoder_with_grouped_queries",
    "texts",
    "local_functions",
    "loop_and_branch",
    "sequence_output",
    "traced_17",
)
COMPARED = ("decoder", "no_inputs", "optional_input", "float64_and_integers", "map_output", "unusual_names")


def case_of(standard: Path, variant: Path, **options: str) -> Case:
    sides = Variant("onnxruntime", str(standard)), Variant("onnxruntime", str(variant), options)
    return Case(standard=sides[0], variant=sides[1], shapes=(Shape(2, 8),), rounds=1, max_rounds=1)


@pytest.fixture
def hurried(monkeypatch):
    quiet(monkeypatch)
    hurry(monkeypatch)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("name", EXPLAINED)
def test_a_model_is_explained(name, tmp_path):
    path = written(name, tmp_path)
    record = pipeline.explain(case_of(path, path, optimization="off"))
    assert to_json(record)
    assert "failed" not in {report.status for report in record.causes}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("name", COMPARED)
def test_a_model_is_compared(name, tmp_path):
    path = written(name, tmp_path)
    record = pipeline.compare(case_of(path, path))
    assert record.agreement is not None
    assert record.agreement.max_error == 0


@pytest.mark.usefixtures("hurried")
def test_a_variant_may_take_and_give_float16(tmp_path):
    paths = [tmp_path / "standard.onnx", tmp_path / "half.onnx"]
    half = built("float16_everywhere").model
    single = read(
        f"""g (float[n, {WIDTH}] x) => (float[n, {WIDTH}] y) {{ m = MatMul(x, w)  s = Softmax(m)  y = Add(s, x) }}""",
        {"w": onnx.numpy_helper.to_array(half.graph.initializer[0]).astype(np.float32)},
    )
    for path, model in zip(paths, (single, half), strict=True):
        onnx.save(model, path)
    record = pipeline.compare(case_of(*paths))
    assert record.agreement is not None
    assert 0.999 < record.agreement.cosine <= 1.0
    assert "input 'x' is float32 in the standard and float16 in the variant" in record.warnings[0]


@pytest.mark.usefixtures("hurried")
def test_a_variant_may_take_narrower_integers(tmp_path):
    paths = [tmp_path / "standard.onnx", tmp_path / "narrow.onnx"]
    for path, dtype in zip(paths, ("int64", "int32"), strict=True):
        text = f"g ({dtype}[n] ids) => (float[n, {WIDTH}] y) {{ y = Gather(w, ids) }}"
        onnx.save(read(text, {"w": numbers(9, WIDTH)}), path)
    record = pipeline.compare(case_of(*paths))
    assert record.agreement is not None
    assert record.agreement.max_error == 0
    assert "int64 in the standard and int32 in the variant" in record.warnings[0]


@pytest.mark.usefixtures("hurried")
def test_texts_may_come_from_a_file(tmp_path):
    path = written("texts", tmp_path)
    np.savez(tmp_path / "words.npz", word=np.array(["a", "été"]), x=numbers(2, 2))
    case = msgspec.structs.replace(case_of(path, path), workload=str(tmp_path / "words.npz"))
    assert pipeline.compare(case).agreement is not None


def test_weights_beside_the_model_are_taken_along(tmp_path):
    """Of initializers, of Constant nodes and of bodies."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    for name in ("branches", "weights_in_constant_nodes"):
        source, model = tmp_path / "there" / f"{name}.onnx", onnx.ModelProto()
        model.CopyFrom(built(name).model)
        onnx.save(model, source, save_as_external_data=True, size_threshold=0, location=name, convert_attribute=True)
        assert (tmp_path / "there" / name).exists()
        copy = tmp_path / "here" / "copy.onnx"
        save_model(read_model(source), copy)
        same(answers(copy, built(name).feed), answers(source, built(name).feed))


def test_what_one_file_can_not_hold_is_said(tmp_path, monkeypatch):
    def save(_model: ir.Model, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise EncodeError("Failed to serialize proto")

    monkeypatch.setattr(ir, "save", save)
    target = tmp_path / "model.onnx"
    with pytest.raises(UsageError, match="too large for one protobuf file"):
        save_model(ir.from_proto(built("qdq").model), target)
    assert not target.exists()


def refused(build: Callable[[], onnx.ModelProto], words: str) -> pytest.param:
    return pytest.param(build, words, id=words)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("build", "words"),
    [
        refused(lambda: twice_the_same_node_name().model, "two nodes with same node name"),
        refused(lambda: read("g (float[n] x) => (float[n] y) { y = local.Unknown(x) }"), "local"),
        refused(
            lambda: read("g (seq(float[n]) x) => (float[n] y) <int64 z = {0}> { y = SequenceAt(x, z) }"),
            "input 'x' is of type sequence",
        ),
        refused(lambda: read("g (bfloat16[n] x) => (float[n] y) { y = Cast <to = 1> (x) }"), "takes bfloat16 at 'x'"),
        refused(lambda: read("g (string[n] x) => (string[n] y) { y = Identity(x) }"), "no numbers"),
        refused(onnx.ModelProto, "is empty"),
    ],
)
def test_what_can_not_work_is_said_in_one_line(build, words, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(build(), path)
    with pytest.raises(UsageError, match=words) as caught:
        pipeline.explain(case_of(path, path))
    assert "\n" not in caught.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="sparse files and peak memory are Linux's here")
@pytest.mark.skipif(shutil.disk_usage(tempfile.gettempdir()).free < 6e9, reason="less than 6 GB are free")
def test_a_model_of_more_than_2_gb_is_looked_at_without_reading_it(tmp_path):
    """The weights are a sparse file: no bytes on the disk. Its facts come from a process of their own."""
    rows = 600_000
    model = read("g (int64[n] x) => (float[n, 1024] y) { y = Gather(table, x) }")
    table = model.graph.initializer.add(name="table", data_type=onnx.TensorProto.FLOAT, dims=(rows, 1024))
    table.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", 0), ("length", rows * 4096)):
        table.external_data.add(key=key, value=str(value))
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    weights.touch()
    os.truncate(weights, rows * 4096)
    onnx.save(model, path)
    script = f"""if True:
        from pathlib import Path
        from unlag.measure.worker import peak_memory_bytes
        from unlag.model.facts import facts_of
        from unlag.model.graph import read_model, size_on_disk_bytes
        path = Path({str(path)!r})
        before = peak_memory_bytes()
        model = read_model(path)
        constant = facts_of(model).constants["table"]
        grown = peak_memory_bytes() - before
        print(constant.size_bytes, constant.zero_share, size_on_disk_bytes(model, path), grown)"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert int(shown[0]) == rows * 4096
    assert float(shown[1]) == 1.0
    assert int(shown[2]) > rows * 4096
    assert int(shown[3]) < 500e6
    inspection = RUNTIME.inspect(Variant("onnxruntime", str(path)))
    assert inspection.limits == {"x": rows}
