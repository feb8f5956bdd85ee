"""Small models through the real compiler and simulator of the NPU; skipped, with the reason, where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import unlag
from planting import LAYERS, editable, tiny_bert
from unlag import pipeline
from unlag.cli.exit_codes import FINE, exit_code
from unlag.errors import ContenderError, Missing, UsageError
from unlag.measure.bench import Bench, first_shape, open_bench
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.report import to_markdown
from unlag.report.record import parse_record, to_json
from unlag.rewrites.fix_dimensions import fix_dimensions
from unlag.runtimes.contract import find_runtime
from unlag.runtimes.onnxruntime import qualcomm
from unlag.stages.fixed import Fix
from unlag.stages.npu_accuracy import static_bench
from unlag.stages.npu_models import compile_model, npu_options

ABSENT = qualcomm.missing()
pytestmark = pytest.mark.skipif(
    ABSENT is not None, reason=f"no NPU can be simulated: {'' if ABSENT is None else ABSENT.reason}: {qualcomm.INSTALL}"
)

SEQUENCE = 8


def case_of(standard: Path, variant: Variant | None = None) -> Case:
    plain = Variant("onnxruntime", str(standard))
    return Case(
        standard=plain, variant=variant or plain, workload="random", shapes=(Shape(1, SEQUENCE),), rounds=2,
        max_rounds=2, target="npu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    onnx.save(tiny_bert(), path)
    return path


@pytest.fixture(scope="module")
def fixed(bert, tmp_path_factory) -> tuple[Fix, Path]:
    folder = tmp_path_factory.mktemp("fixed") / "out"
    return pipeline.fix(case_of(bert), folder), folder


def bench_of(path: Path) -> Bench:
    case = case_of(path)
    return static_bench(open_bench(case, first_shape(case)))


@pytest.fixture(scope="module")
def bench(bert):
    return bench_of(bert)


def test_a_transformer_runs_on_the_npu_in_one_piece(fixed):
    npu = fixed[0].npu
    assert npu.whole
    assert (npu.partitions, npu.fallback_nodes, npu.fallback) == (1, 0, ())
    assert npu.npu_nodes > 100
    assert npu.operators["FullyConnected"] == 4 * LAYERS, "every product with a weight has its bias inside"
    assert npu.operators["LayerNorm"] == 2 * LAYERS + 1
    assert npu.operators["Gelu"] == LAYERS
    assert npu.cosine > 0.97
    assert npu.context_bytes == (fixed[1] / "context_qnn.bin").stat().st_size
    assert npu.moves < npu.before.moves, "fewer operators that only move data"


def test_what_there_was_before_is_less(fixed):
    before = fixed[0].npu.before
    assert not before.whole
    assert {kind.operator for kind in before.fallback} >= {"Erf"}
    assert all(kind.reason for kind in before.fallback), "each with the provider's reason"
    assert before.cosine < fixed[0].npu.cosine


def test_no_time_of_an_npu_is_told(fixed):
    record = fixed[0]
    assert record.result is None
    assert record.stages == ()
    assert "which is no time of an NPU" in " ".join(to_markdown.render(record).split())
    assert any("how long a run takes" in what for what in record.npu.not_measured)


def test_the_record_comes_back_from_json_and_is_fine(fixed):
    assert parse_record(to_json(fixed[0]), "run.json") == fixed[0]
    assert exit_code(fixed[0]) == FINE


def test_the_folder_loads_and_holds_the_compiled_model_too(fixed, bench):
    folder = fixed[1]
    assert {"model.onnx", "context.onnx", "context_qnn.bin", "run.json", "report.html", "README.md", "unlag.json"} == {
        path.name for path in folder.iterdir()
    }
    feed = dict(bench.workload.feed)
    outputs = unlag.load(folder).run(feed)
    compiled = find_runtime("onnxruntime").open(
        Variant("onnxruntime", str(folder / "context.onnx"), npu_options({})), threads=1
    )
    for name, array in compiled.run(feed).items():
        assert np.array_equal(outputs[name], array), "compiled ahead or when opened: the same"


def test_the_readmes_code_works(fixed, bench):
    folder = fixed[1]
    code = (folder / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    code = code.replace("'context.onnx'", repr(str(folder / "context.onnx")))
    code = "\n".join(line for line in code.splitlines() if "register_execution" not in line)  # done by loading it above
    scope: dict[str, object] = {}
    exec(code, scope)  # noqa: S102 - what the README tells people to run
    assert scope["session"].run(None, dict(bench.workload.feed))[0].shape[1] == SEQUENCE


def test_a_second_fix_replaces_the_first(fixed, bert):
    again = pipeline.fix(case_of(bert), fixed[1])
    assert again.npu.whole
    assert (fixed[1] / "context.onnx").exists()


def test_a_variant_is_compiled_as_it_is_before(bert, tmp_path):
    unknown = onnx.ModelProto()
    unknown.CopyFrom(tiny_bert())
    for node in unknown.graph.node:
        if node.op_type == "Softmax":
            node.op_type, node.name = "Hardmax", f"{node.name}.hard"
    path = tmp_path / "hard.onnx"
    onnx.save(unknown, path)
    record = pipeline.fix(case_of(bert, Variant("onnxruntime", str(path), {"optimization": "off"})), tmp_path / "out")
    assert record.npu.before.model == "hard.onnx,optimization=off"
    refused = {kind.operator: kind for kind in record.npu.before.fallback}
    assert refused["Hardmax"].nodes == LAYERS
    assert "Hardmax" in refused["Hardmax"].reason
    assert record.npu.whole, "what goes out is made from the standard"


def compiled_for(chip: str, bench: Bench, folder: Path) -> qualcomm.Compilation:
    """A transformer in float32 of fixed sizes."""
    model = editable(tiny_bert())
    fix_dimensions(model, {name: array.shape for name, array in bench.workload.feed.items()})
    ir.save(model, folder / "float.onnx")
    variant = Variant("onnxruntime", str(folder / "float.onnx"), npu_options({qualcomm.SOC: chip}))
    return compile_model(bench, variant, folder / f"chip{chip}")


def test_a_chip_with_float16_takes_what_one_without_refuses(bench, tmp_path):
    taken = compiled_for("60", bench, tmp_path)
    assert (taken.partitions, taken.fallback_nodes) == (1, 0)
    with pytest.raises(ContenderError, match="the compiler for the NPU: ") as caught:
        compiled_for("0", bench, tmp_path)
    assert "\n" not in caught.value.message
    assert str(tmp_path) not in caught.value.message, "names of temporary files tell nobody anything"


def test_a_chip_that_does_not_exist_is_an_error_and_not_the_cpu(bench, tmp_path):
    with pytest.raises(UsageError, match="Invalid config values"):
        compiled_for("99999", bench, tmp_path)


def test_missing_says_nothing_where_it_is_there():
    assert not isinstance(qualcomm.missing(), Missing)
    assert qualcomm.runtime_version().startswith("onnxruntime-qnn ")
