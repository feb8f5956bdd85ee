"""The README in a fixed model's folder: its code is run, and opens the model with the very options that were kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from planting import tiny_bert, tiny_feed
from unlag.model.deployment import MODEL, deploy
from unlag.model.variant import Variant
from unlag.report.folder_note import folder_note
from unlag.runtimes.onnxruntime.options import session_options

ENTRIES = (
    "session.intra_op.allow_spinning", "session.set_denormal_as_zero", "session.dynamic_block_base",
    "session.disable_prepacking",
)  # fmt: skip

OPTIONS: tuple[dict[str, str], ...] = (
    {},
    {"arena": "off"},
    {"memory_pattern": "off", "spinning": "off"},
    {"optimization": "extended", "threads": "2"},
    {"disable": "BiasGeluFusion+SkipLayerNormFusion"},
    {"execution": "parallel", "inter_threads": "2"},
    {"provider": "cpu", "config.session.set_denormal_as_zero": "1", "config.session.dynamic_block_base": "4"},
    {"arena": "on", "spinning": "on", "optimization": "off"},
)


def code_in(note: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", note, re.DOTALL)
    return code


def run_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the code of a folder's README leaves, run in that folder."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(code_in((folder / "README.md").read_text()), "README.md", "exec"), names)  # noqa: S102 - the point
    return names


@pytest.fixture
def folder(tmp_path):
    onnx.save(tiny_bert(), tmp_path / "source.onnx")
    (tmp_path / "fixed").mkdir()

    def write(options: dict[str, str], threads: int = 1) -> Path:
        variant = Variant("onnxruntime", str(tmp_path / "source.onnx"), options)
        deploy(variant, threads, tmp_path / "fixed")
        (tmp_path / "fixed" / "README.md").write_text(folder_note(variant, threads))
        return tmp_path / "fixed"

    return write


def facts(options: ort.SessionOptions) -> dict[str, object]:
    def entry(key: str) -> str | None:
        try:
            return str(options.get_session_config_entry(key))
        except RuntimeError:
            return None

    return {
        "threads": options.intra_op_num_threads,
        "inter_threads": options.inter_op_num_threads,
        "level": options.graph_optimization_level,
        "execution": options.execution_mode,
        "arena": options.enable_cpu_mem_arena,
        "pattern": options.enable_mem_pattern,
        **{key: entry(key) for key in ENTRIES},
    }


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_code_opens_the_model_as_unlag_does(folder, monkeypatch, options):
    names = run_code(folder(options), monkeypatch)
    assert facts(names["options"]) == facts(session_options(Variant("onnxruntime", MODEL, options), 1))
    expected = ort.InferenceSession(MODEL).run(None, tiny_feed())[0]
    assert np.asarray(names["session"].run(None, tiny_feed())[0]) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_passes_that_are_off_are_off_in_the_code_too(folder, monkeypatch):
    place = folder({"disable": "BiasGeluFusion"})
    note = (place / "README.md").read_text()
    assert "disabled_optimizers=['BiasGeluFusion']" in note
    kinds = {}
    for name, text in (("with", note.replace(", disabled_optimizers=['BiasGeluFusion']", "")), ("without", note)):
        line = f"options.optimized_model_filepath = '{name}.onnx'\nsession ="
        (place / "README.md").write_text(text.replace("session =", line))
        run_code(place, monkeypatch)
        kinds[name] = {node.op_type for node in onnx.load(place / f"{name}.onnx").graph.node}
    assert "BiasGelu" in kinds["with"]
    assert "BiasGelu" not in kinds["without"]


def test_only_options_that_were_kept_are_in_the_code(folder):
    code = code_in((folder({}, 3) / "README.md").read_text())
    assert code.splitlines() == [
        "import onnxruntime as ort",
        "options = ort.SessionOptions()",
        "options.intra_op_num_threads = 3",
        "session = ort.InferenceSession('model.onnx', options, providers=['CPUExecutionProvider'])",
    ]


def test_values_are_written_as_python_and_not_run():
    note = folder_note(Variant("onnxruntime", "m.onnx", {"config.a')": "'); import os; ('"}), 1)
    assert """options.add_session_config_entry("a')", "'); import os; ('")""" in note


def test_replicas_are_said_where_there_are_some():
    assert "4 processes, each with 2 threads" in folder_note(Variant("onnxruntime", "m.onnx"), 2, 4)
    assert "processes" not in folder_note(Variant("onnxruntime", "m.onnx"), 2)


def test_what_plain_onnx_runtime_has_no_word_for_is_said():
    note = folder_note(Variant("onnxruntime", "m.onnx", {"arena": "off", "log": "info"}), 1)
    assert "What only `unlag.load` sets: log=info." in note
    assert "arena" not in note.split("What only")[1]


def test_another_runtime_has_no_code():
    note = folder_note(Variant("fake", "m.json"), 1)
    assert "unlag.load" in note
    assert "onnxruntime" not in note
