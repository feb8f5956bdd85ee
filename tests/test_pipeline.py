"""From a lagging variant to a folder that loads: whole runs on a tiny BERT, and what happens when one fails."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest

from measure.scripted import fake, hurry, in_process, quiet
from planting import CONFIG, flash, tiny_bert, tiny_feed
from report import records
from unlag import pipeline
from unlag.errors import ContenderError, UsageError
from unlag.fixed_model import load
from unlag.measure.bench import first_shape, open_bench
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.deployment import DESCRIPTION, MODEL, Deployment
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.report.record import parse_record
from unlag.stages import fix as fix_module
from unlag.stages import hardware
from unlag.stages.fix import Fixed
from unlag.stages.fixed import Fix, Throughput
from unlag.stages.start import FOLDER, open_journal

__all__ = ["in_process"]  # a fixture

OFF = {"optimization": "off"}


def written(folder: Path, name: str, model: onnx.ModelProto, options: dict[str, str] | None = None) -> Variant:
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return Variant("onnxruntime", str(path), options or {})


@pytest.fixture
def lagging(tmp_path, monkeypatch) -> Case:
    """Dequantized weights, copies and no graph passes; short turns, one session setting."""
    quiet(monkeypatch)
    hurry(monkeypatch)
    monkeypatch.setenv("UNLAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hardware, "CPU_SETTINGS", {"spinning=off": {"spinning": "off"}})
    monkeypatch.setattr(hardware, "passes_to_try", lambda *_: {})
    return Case(
        standard=written(tmp_path, "standard", tiny_bert()),
        variant=written(tmp_path, "flash", flash(int8_weights=True, extra_copies=True), OFF),
        shapes=(Shape(2, 8),),
        rounds=2,
        max_rounds=2,
    )


def run_alone(variant: Variant, feed: dict[str, np.ndarray], threads: int = 1) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(variant.path, options).run(None, feed)[0]


def test_fix_writes_a_folder_that_loads_and_gives_the_standards_outputs(lagging, tmp_path):
    told: list[float] = []
    output = tmp_path / "out" / "fixed"
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    record = pipeline.fix(lagging, output, lambda _, share=None: told.extend([] if share is None else [share]))
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before

    assert {path.name for path in output.iterdir()} == {MODEL, DESCRIPTION, "run.json", "report.html", "README.md"}
    assert [path.name for path in output.parent.iterdir()] == ["fixed"], "the hidden folder is gone"
    assert parse_record((output / "run.json").read_bytes(), "run.json") == record
    assert [stage.name for stage in record.stages] == ["baseline", "quantization", "graph", "hardware"]
    assert record.stages[0].speedup_over_baseline.estimate == 1.0
    assert record.stages[-1].slowdown_to_standard.estimate < record.stages[0].slowdown_to_standard.estimate
    assert record.stages[-1].size_bytes == (output / MODEL).stat().st_size
    assert told
    assert 0 <= min(told) <= max(told) <= 1

    fixed, feed = load(output), tiny_feed()
    assert [info.name for info in fixed.signature.inputs] == list(feed)
    ours, standards = fixed.run(feed)["last_hidden_state"], run_alone(lagging.standard, feed)
    cosine = float(np.vdot(ours, standards) / np.linalg.norm(ours) / np.linalg.norm(standards))
    assert cosine > 0.9, "wide: no labels watch the accuracy, and the tiny model's weights are wild"
    assert fixed.variant.options == json.loads((output / DESCRIPTION).read_bytes())["options"]
    recorded = Variant("onnxruntime", str(output / MODEL))
    assert ours == pytest.approx(run_alone(recorded, feed), rel=1e-3, abs=1e-3)


def test_an_interrupted_fix_goes_on_where_it_was(lagging, tmp_path, monkeypatch, in_process):
    output, stop = tmp_path / "fixed", KeyboardInterrupt()

    def stopped(*_: object) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(fix_module, "fit_hardware", stopped)
        with pytest.raises(KeyboardInterrupt):
            pipeline.fix(lagging, output)
    assert not output.exists()
    kept = list((tmp_path / "cache" / FOLDER).glob("*/*.step"))
    assert len(kept) >= 3, "comparison and explanation, and a search of each stage"
    in_process.started.clear()
    told: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_explain", stopped)
        pipeline.fix(lagging, output, lambda what, _=None: told.append(what), resume=True)
    assert told[1] == f"going on from {len(kept)} results of an interrupted fix"
    assert load(output).run(tiny_feed())
    assert not list((tmp_path / "cache" / FOLDER).glob("*/*.step")), "what is finished is forgotten"


def test_without_resume_an_interrupted_fix_is_forgotten(lagging):
    bench = open_bench(lagging, first_shape(lagging))
    open_journal(bench, resume=False).write(1, "x")
    assert open_journal(bench, resume=True).steps == 1
    other = msgspec.structs.replace(lagging, seed=1)
    assert open_journal(open_bench(other, first_shape(other)), resume=True).steps == 0, "another case"
    assert open_journal(bench, resume=False).steps == 0


def test_a_standard_alone_is_made_better(lagging, tmp_path):
    alone = msgspec.structs.replace(lagging, variant=lagging.standard)
    record = pipeline.fix(alone, tmp_path / "fixed")
    assert not record.explanation.causes
    assert record.result.verdict.speed != "slower"
    ours = load(tmp_path / "fixed").run(tiny_feed())["last_hidden_state"]
    standards = run_alone(lagging.standard, tiny_feed())
    assert float(np.vdot(ours, standards) / np.linalg.norm(ours) / np.linalg.norm(standards)) > 0.9


def test_fix_again_replaces_its_own_folder_only(in_process, lagging, tmp_path, monkeypatch):
    output = tmp_path / "fixed"
    stub_fix(monkeypatch, lagging)
    pipeline.fix(lagging, output)
    (output / "weights.bin").write_text("of the first run")
    describe(output, MODEL, data=("weights.bin",))
    pipeline.fix(lagging, output)
    assert not (output / "weights.bin").exists()
    assert load(output).run(tiny_feed())
    assert not in_process.alive


def stub_fix(monkeypatch: pytest.MonkeyPatch, case: Case, error: BaseException | None = None, **found: object) -> None:
    """Everything but measuring."""
    fixed = Fixed(msgspec.structs.replace(records.fix(), output="fixed", **found), case.standard)

    def scripted(*_: object, **__: object) -> Fixed:
        if error is not None:
            raise error
        return fixed

    monkeypatch.setattr(pipeline, "_explained", lambda *_: (None, records.explanation(), Observed()))
    monkeypatch.setattr(pipeline, "fix_variant", scripted)


def test_a_fix_for_throughput_says_in_how_many_replicas_the_model_is_used_best(lagging, tmp_path, monkeypatch):
    variant = lagging.standard.with_options(threads="2", arena="off")
    stub_fix(monkeypatch, msgspec.structs.replace(lagging, standard=variant), throughput=throughput(4, 1))
    pipeline.fix(msgspec.structs.replace(lagging, objective="throughput"), tmp_path / "fixed")
    model = load(tmp_path / "fixed")
    assert (model.replicas, model.threads) == (4, 1)
    assert model.variant.options == {"arena": "off"}, "a replica has the threads that it was raced with"
    note = (tmp_path / "fixed" / "README.md").read_text()
    assert "in 4 processes, each with 1 thread on a core of its own" in note
    assert "options.intra_op_num_threads = 1" in note
    description = json.loads((tmp_path / "fixed" / DESCRIPTION).read_bytes())
    assert description["made"]["objective"] == "throughput"
    assert set(description["made"]["versions"]) == {"unlag", "onnxruntime"}


def throughput(replicas: int, threads: int) -> Throughput:
    one = Interval(1.0, 1.0, 1.0)
    return Throughput(
        cores=4, batch=1, standard=(), fixed=(), replicas=replicas, threads=threads, gain=one, refused=(), pinned=True,
        quiet=True,
    )  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "what", ["a foreign file", "a file in its place", "nothing but a README", "a file beside ours"]
)
def test_an_output_that_holds_something_else_is_refused_and_untouched(lagging, tmp_path, monkeypatch, what):
    output = tmp_path / "there"
    if what == "a file in its place":
        output.write_text("mine")
    else:
        output.mkdir()
        (output / ("README.md" if what == "nothing but a README" else "thesis.txt")).write_text("mine")
        if what == "a file beside ours":
            describe(output, MODEL)
    stub_fix(monkeypatch, lagging)
    before = files(tmp_path)
    with pytest.raises(UsageError, match="holds something that unlag did not write") as caught:
        pipeline.fix(lagging, output)
    assert "-o" in caught.value.hint
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", [".", "link", "../here/new"])
def test_an_output_may_be_named_in_any_way(lagging, tmp_path, monkeypatch, name):
    stub_fix(monkeypatch, lagging)
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "target").mkdir()
    monkeypatch.chdir(here)
    if name == "link":
        (here / "link").symlink_to(tmp_path / "target")
    pipeline.fix(lagging, Path(name))
    place = {".": here, "link": here / "link", "../here/new": here / "new"}[name]
    assert load(place).signature.inputs


def test_an_empty_output_folder_is_used(lagging, tmp_path, monkeypatch):
    stub_fix(monkeypatch, lagging)
    (tmp_path / "empty").mkdir()
    pipeline.fix(lagging, tmp_path / "empty")
    assert (tmp_path / "empty" / MODEL).exists()


@pytest.mark.parametrize(
    "error",
    [
        ContenderError("variant crashed"),
        KeyboardInterrupt(),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("ours"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("existing", [False, True], ids=["new", "over an older one"])
def test_a_failure_in_the_middle_leaves_all_as_it_was(lagging, tmp_path, monkeypatch, error, existing):
    output = tmp_path / "fixed"
    if existing:
        stub_fix(monkeypatch, lagging)
        pipeline.fix(lagging, output)
    before = files(tmp_path)
    stub_fix(monkeypatch, lagging, error)
    kind = UsageError if isinstance(error, OSError) else type(error)
    with pytest.raises(kind) as caught:
        pipeline.fix(lagging, output)
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == before
    assert existing or not output.exists()


def test_a_disk_that_is_full_while_the_result_is_written(lagging, tmp_path, monkeypatch):
    stub_fix(monkeypatch, lagging)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(UsageError, match=r"fixed can't be written: No space left on device"):
        pipeline.fix(lagging, tmp_path / "fixed")
    assert {path.name for path in tmp_path.iterdir()} == {"standard.onnx", "flash.onnx"}


def test_a_parent_that_cannot_be_written_is_refused_before_any_work(lagging, tmp_path, monkeypatch):
    """Simulated: root may write everywhere."""

    def denied(*_: object, **__: object) -> str:
        raise OSError(errno.EROFS, "Read-only file system")

    def worked(*_: object) -> None:
        pytest.fail("work was begun")

    monkeypatch.setattr(pipeline, "_explain", worked)
    monkeypatch.setattr(tempfile, "mkdtemp", denied)
    with pytest.raises(UsageError, match="can't be written: Read-only file system"):
        pipeline.fix(lagging, tmp_path / "fixed")


def test_a_parent_that_is_a_file_is_refused(lagging, tmp_path, monkeypatch):
    stub_fix(monkeypatch, lagging)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="can't be written"):
        pipeline.fix(lagging, tmp_path / "file" / "fixed")


def test_a_variant_that_cannot_be_read_leaves_no_folder(lagging, tmp_path):
    Path(lagging.variant.path).write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        pipeline.fix(lagging, tmp_path / "new" / "fixed")
    assert not list((tmp_path / "new").iterdir())


def test_weights_beside_the_model_are_taken_along(lagging, tmp_path, monkeypatch):
    far = tmp_path / "far" / "plan0.onnx"
    far.parent.mkdir()
    onnx.save(
        onnx.load(lagging.standard.path),
        far,
        save_as_external_data=True,
        location="plan0.onnx.data",
        size_threshold=1024,
    )
    stub_fix(monkeypatch, msgspec.structs.replace(lagging, standard=Variant("onnxruntime", str(far))))
    pipeline.fix(lagging, tmp_path / "fixed")
    shutil.rmtree(far.parent)
    feed = tiny_feed()
    assert np.array_equal(load(tmp_path / "fixed").run(feed)["last_hidden_state"], run_alone(lagging.standard, feed, 2))


def test_explain_adds_up_and_rules_out_by_measuring(in_process, lagging):
    """Rounds are few and runs are short, so it is the bookkeeping that is looked at, not who is proven."""
    explanation = pipeline.explain(lagging)
    by_id = {cause.id: cause for cause in explanation.causes}
    for name in ("dequantized_weights", "disabled_graph_passes", "redundant_copies"):
        assert by_id[name].status in {"proven", "ruled_out"}, by_id[name].reason
        assert by_id[name].cost_ms is not None
    parts = explanation.reconciliation
    assert parts is not None
    total = parts.explained_ms.estimate + parts.interaction_ms.estimate + parts.unexplained_ms.estimate
    assert total == pytest.approx(parts.gap_ms.estimate, abs=1e-6)
    assert not in_process.alive


def test_explain_of_something_that_is_no_graph_still_answers(in_process, tmp_path):
    case = Case(
        standard=fake(tmp_path, "one"), variant=fake(tmp_path, "other", time_ms=0.3), shapes=(Shape(1, 4),), rounds=2
    )
    explanation = pipeline.explain(case)
    reconciliation = explanation.reconciliation
    assert reconciliation.explained_ms.estimate == 0
    assert reconciliation.unexplained_ms == reconciliation.gap_ms
    assert all(cause.status in {"not_checked", "ruled_out"} for cause in explanation.causes)
    assert not in_process.alive


def describe(folder, model, data=()):
    (folder / DESCRIPTION).write_bytes(msgspec.json.encode(Deployment("onnxruntime", model, {}, 1, data)))


@pytest.mark.parametrize("description", [None, b"{}", b"no json"])
def test_only_folders_that_fix_wrote_load(tmp_path, description):
    if description is not None:
        (tmp_path / DESCRIPTION).write_bytes(description)
    with pytest.raises(UsageError, match="is not a folder that unlag fix has written"):
        load(tmp_path)


def test_a_description_that_names_a_model_elsewhere_is_refused(tmp_path):
    describe(tmp_path, "../secret.onnx")
    with pytest.raises(UsageError, match="names a model outside its own folder"):
        load(tmp_path)


def test_records_of_a_fix_round_trip():
    assert msgspec.json.decode(msgspec.json.encode(records.fix()), type=Fix) == records.fix()
    assert CONFIG.num_hidden_layers == 2
