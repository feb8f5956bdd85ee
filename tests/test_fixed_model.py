"""What ``unlag.load`` gives: single runs, and many rows batched by length that come back in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import quantize_dynamic

from measure.scripted import linear, onnx_model
from planting import CONFIG, tiny_bert, tiny_feed
from unlag.fixed_model import FixedModel, load
from unlag.model.deployment import DESCRIPTION, Made, deploy, read_deployment
from unlag.model.variant import Variant
from unlag.model.workload import Feed


def deployed(folder: Path, model: onnx.ModelProto | Path, **options: str) -> FixedModel:
    source = folder / "source.onnx"
    if isinstance(model, Path):
        source = model
    else:
        onnx.save(model, source)
    (folder / "fixed").mkdir()
    deploy(Variant("onnxruntime", str(source), options), 1, folder / "fixed")
    return load(folder / "fixed")


def texts(*lengths: int, rows: int = 1) -> list[Feed]:
    rng = np.random.default_rng(0)
    return [
        {
            "input_ids": rng.integers(0, CONFIG.vocab_size, (rows, length)),
            "attention_mask": np.ones((rows, length), np.int64),
            "token_type_ids": np.zeros((rows, length), np.int64),
        }
        for length in lengths
    ]


def counted(model: FixedModel) -> list[tuple[int, ...]]:
    """The shapes that the session is given from now on."""
    shapes: list[tuple[int, ...]] = []
    run = model._session.run

    def noted(feed: Feed, outputs=None):
        shapes.append(next(iter(feed.values())).shape)
        return run(feed, outputs)

    model._session.run = noted
    return shapes


LENGTHS = (7, 3, 7, 12, 3, 7, 1, 12, 7, 7)


def test_rows_come_back_in_order_as_if_each_had_run_alone(tmp_path):
    model, feeds = deployed(tmp_path, tiny_bert()), texts(*LENGTHS)
    alone = [model.run(feed)["last_hidden_state"] for feed in feeds]
    shapes = counted(model)
    together = model.run_rows(feeds, batch=4)
    assert sorted(shapes) == [(1, 1), (1, 7), (2, 3), (2, 12), (4, 7)], "equal lengths run together, four at most"
    for one, other in zip(alone, together, strict=True):
        assert set(other) == {"last_hidden_state"}
        assert other["last_hidden_state"] == pytest.approx(one, rel=1e-4, abs=1e-5)
    assert np.abs(alone[0] - alone[2]).max() > 0.01, "another order would be seen"


def test_rows_of_a_dynamically_quantized_model_share_their_scales(tmp_path):
    onnx.save(tiny_bert(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    model, feeds = deployed(tmp_path, tmp_path / "int8.onnx"), texts(*LENGTHS)
    for feed, outputs in zip(feeds, model.run_rows(feeds), strict=True):
        one, other = model.run(feed)["last_hidden_state"].ravel(), outputs["last_hidden_state"].ravel()
        assert float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)) > 0.98


def test_feeds_of_several_rows_keep_their_rows(tmp_path):
    model = deployed(tmp_path, tiny_bert())
    feeds = [*texts(5, rows=3), *texts(5, rows=1), *texts(6, rows=2), *texts(5, rows=2)]
    assert [outputs["last_hidden_state"].shape[:2] for outputs in model.run_rows(feeds)] == [
        (3, 5),
        (1, 5),
        (2, 6),
        (2, 5),
    ]


def test_no_rows_no_outputs(tmp_path):
    assert deployed(tmp_path, tiny_bert()).run_rows([]) == []


def test_a_model_of_a_fixed_batch_runs_one_by_one(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = deployed(tmp_path, onnx_model(tmp_path / "m.onnx", nodes, {"y": [1, 4]}, batch=1))
    shapes = counted(model)
    outputs = model.run_rows([{"x": np.full((1, 4), value, np.float32)} for value in (1, 2, 3)])
    assert [float(output["y"].max()) for output in outputs] == [1, 2, 3]
    assert shapes == [(1, 4)] * 3


def test_outputs_that_do_not_have_the_rows_are_not_cut(tmp_path):
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    model = deployed(tmp_path, onnx_model(tmp_path / "m.onnx", nodes, {"y": []}))
    outputs = model.run_rows([{"x": np.full((1, 4), value, np.float32)} for value in (1, 2)])
    assert [float(output["y"]) for output in outputs] == [4, 8]


def test_other_types_of_the_same_shape_do_not_mix(tmp_path):
    model = deployed(tmp_path, Path(linear(tmp_path / "m.onnx").path))
    wrong = {"x": np.ones((1, 4), np.float64)}
    with pytest.raises(Exception, match="Unexpected input data type"):
        model.run_rows([{"x": np.ones((1, 4), np.float32)}, wrong])


def test_the_folder_says_how_it_is_used_best(tmp_path):
    onnx.save(tiny_bert(), tmp_path / "m.onnx")
    made = Made("throughput", "stsb", "1x128", "a CPU", 8, {"unlag": "1"})
    (tmp_path / "fixed").mkdir()
    variant = Variant("onnxruntime", str(tmp_path / "m.onnx"), {"arena": "off"})
    deploy(variant, 2, tmp_path / "fixed", replicas=4, made=made)
    model = load(tmp_path / "fixed")
    assert (model.threads, model.replicas, model.variant.options) == (2, 4, {"arena": "off"})
    assert model.run(tiny_feed())
    assert read_deployment(tmp_path / "fixed").made == made


def test_a_folder_of_an_older_version_loads(tmp_path):
    model = deployed(tmp_path, tiny_bert())
    description = tmp_path / "fixed" / DESCRIPTION
    description.write_text('{"runtime": "onnxruntime", "model": "model.onnx", "options": {}, "threads": 1}')
    assert load(tmp_path / "fixed").replicas == model.replicas == 1


def test_loading_needs_no_more_than_the_model_and_its_runtime():
    code = "import sys, unlag; unlag.load; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"unlag.pipeline", "unlag.stages", "unlag.report", "scipy", "jinja2", "onnxruntime"} & set(loaded)
