"""What a fix for the NPU decides, and how its compiler is read: on recorded and scripted results, no package needed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from planting import tiny_bert
from unlag import pipeline
from unlag.errors import ContenderError, UsageError
from unlag.measure.accuracy import Scored
from unlag.measure.comparison import Accuracy
from unlag.measure.progress import silent
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Evaluation
from unlag.runtimes.onnxruntime import qualcomm
from unlag.runtimes.onnxruntime.qualcomm import CONTEXT, TRACE, Compilation, Refusal, read_compilation
from unlag.stages import npu_search
from unlag.stages.fixed import PartScore
from unlag.stages.goal import Goal
from unlag.stages.npu_accuracy import ITEMS, choose_part, largest_part, scored_part
from unlag.stages.npu_models import SCHEMES, npu_options
from unlag.stages.npu_search import Candidate, Search, choose

NAMES = [scheme.name for scheme in SCHEMES]
EIGHT, SUMS, SIXTEEN, FLOAT = NAMES

ERF = "Operators of type `Erf` are not supported by QNN EP"
RECORDED = {
    "backend_type": "htp",
    "schema_version": 2,
    "subgraph_traces": [
        {"graph_name": "a", "op_mappings": [{"dst_qnn_op_type": "FullyConnected"}, {"dst_qnn_op_type": "Transpose"}]},
        {"graph_name": "b", "op_mappings": [{"dst_qnn_op_type": "FullyConnected"}]},
    ],
    "summary": {"qnn_subgraphs": 2, "supported_nodes": 41, "total_onnx_nodes": 46, "unsupported_nodes": 5},
    "unsupported_nodes": [
        {"node_index": 1, "node_name": "layer.0.gelu.erf", "op_type": "Erf",
         "reason": ERF + ".Erf node `layer.0.gelu.erf` will not be assigned to QNN EP."},
        {"node_index": 5, "node_name": "layer.1.gelu.erf", "op_type": "Erf",
         "reason": ERF + ".Erf node `layer.1.gelu.erf` will not be assigned to QNN EP."},
        {"node_index": 7, "node_name": "norm", "op_type": "LayerNormalization", "reason": "Failed to add node."},
        {"node_index": 8, "node_name": "norm.scale", "op_type": "DequantizeLinear", "reason": "Failed to add node."},
        {"node_index": 9, "node_name": "odd", "op_type": "Mod", "reason": ""},
    ],
}  # fmt: skip
"""Cut from what onnxruntime-qnn 2.7.0 wrote for MiniLM quantized by ONNX Runtime's defaults, and with scales by channel
for its normalizations."""

NOT_TAKEN = "does not take these types, shapes or parameters"
LOG = (
    "\x1b[0;93m2026-12-01 03:10:19.435 [W:onnxruntime:, qnn_model_wrapper.cc:565 CreateQnnNode] "
    "QNN.backendValidateOpConfig() failed for node `norm` of type `LayerNorm` with error code 3110\n\x1b[m\n"
)
REFUSED = (
    "\x1b[1;31m2026-12-01 03:29:20.113 [E:onnxruntime:, qnn_execution_provider.cc:2290 GetCapabilityImpl] QNN "
    "SetupBackend failed Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG: Invalid config values\x1b[m\n"
)


def leave(folder: Path, trace: object = RECORDED, parts: int = 2) -> None:
    """What the compiler leaves in a folder."""
    nodes = [
        helper.make_node("EPContext", ["x"], [f"y{number}"], domain="com.microsoft", ep_cache_context="context_qnn.bin")
        for number in range(parts)
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph(nodes, "compiled", [value], [value])
    if parts:
        onnx.save(helper.make_model(graph), folder / CONTEXT)
        (folder / "context_qnn.bin").write_bytes(b"1234567")
    (folder / TRACE).write_text(json.dumps(trace))


def test_what_the_compiler_says_is_read(tmp_path):
    leave(tmp_path)
    read = read_compilation(tmp_path, LOG)
    assert (read.partitions, read.npu_nodes, read.fallback_nodes, read.context_bytes) == (2, 41, 5, 7)
    assert read.operators == {"FullyConnected": 2, "Transpose": 1}
    assert read.fallback == (
        Refusal("Erf", ERF, 2),
        Refusal("LayerNormalization", f"the NPU's LayerNorm {NOT_TAKEN} (error 3110)", 1),
        Refusal("DequantizeLinear", "Failed to add node", 1),
        Refusal("Mod", "the provider gives no reason", 1),
    )  # fmt: skip


def test_a_model_that_stays_on_the_cpu_has_no_pieces(tmp_path):
    leave(tmp_path, parts=0)
    read = read_compilation(tmp_path, LOG)
    assert (read.partitions, read.npu_nodes, read.context_bytes, read.context) == (0, 0, 0, "")


def test_without_a_trace_the_last_error_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"Failed to create device.*Invalid config values") as caught:
        read_compilation(tmp_path, LOG + REFUSED)
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("trace", [{"summary": {}}, {"schema_version": 9}, ["a list"]])
def test_another_versions_trace_is_said_to_be_one(tmp_path, trace):
    leave(tmp_path, trace)
    with pytest.raises(UsageError, match="a trace that unlag can't read"):
        read_compilation(tmp_path, "")


def test_without_the_package_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    path = tmp_path / "bert.onnx"
    onnx.save(tiny_bert(), path)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        qualcomm.importlib.util, "find_spec", lambda name: None if name == qualcomm.MODULE else find(name)
    )
    case = Case(standard=Variant("onnxruntime", str(path)), variant=Variant("onnxruntime", str(path)), target="npu")
    with pytest.raises(UsageError, match="onnxruntime-qnn is not installed") as caught:
        pipeline.fix(case, tmp_path / "out")
    assert caught.value.hint == "pip install 'unlag[npu]'"
    assert sorted(tmp_path.iterdir()) == [path], "nothing is written"


def test_a_package_without_its_library_is_told_apart(monkeypatch, tmp_path):
    absent = tmp_path / "libQnnHtp.so"
    module = SimpleNamespace(get_library_path=lambda: __file__, get_qnn_htp_path=lambda: str(absent))
    monkeypatch.setitem(__import__("sys").modules, qualcomm.MODULE, module)
    monkeypatch.setattr(qualcomm.importlib.util, "find_spec", lambda _name: object())
    assert "lacks libQnnHtp.so" in qualcomm.missing().reason


def test_options_name_the_chip_and_leave_the_cpus_settings_out():
    assert npu_options({})[qualcomm.SOC] == "60"
    asked = npu_options({"optimization": "off", "provider.soc_model": "43", "threads": "1"})
    assert asked == {"provider": "qnn", qualcomm.SOC: "43", **qualcomm.WHOLE}


def scored(change: float) -> PartScore:
    return PartScore(
        accuracy=Accuracy("metric", 80 + change), standard=Accuracy("metric", 80.0),
        change=Interval(change, change - 0.3, change + 0.3), items=128, of=1379, runs=250, seed=0,
    )  # fmt: skip


def whole(partitions: int = 1, left: int = 0) -> Compilation:
    fallback = (Refusal("Erf", "not supported", left),) if left else ()
    return Compilation(partitions, 100, left, fallback, {}, 1000, "context.onnx")


class Script:
    """A judge, a quantizer and a compiler that say what they are told to."""

    def __init__(self, monkeypatch, *, compiled=None, on_cpu=None, simulated=None, cosine=0.999, skipped=()):
        self.compiled = dict.fromkeys(NAMES, whole()) | (compiled or {})
        self.on_cpu = dict.fromkeys(NAMES, 0.0) | (on_cpu or {})
        self.simulated = dict.fromkeys(NAMES, 0.0) | (simulated or {})
        self.cosines = cosine
        self.labeled = True
        self.asked: list[str] = []
        monkeypatch.setattr(
            npu_search, "quantized", lambda _bench, scheme, _prepared, path: None if scheme.name in skipped else path
        )
        monkeypatch.setattr(npu_search, "compile_model", self.compile)

    def compile(self, _bench, _variant, folder):
        found = self.compiled[NAMES[int(folder.name[-1])]]
        if isinstance(found, str):
            raise ContenderError(found)
        return found

    def by_codes(self, name, _path):
        return self._score(self.on_cpu, name, "its codes on the CPU")

    def simulate(self, name, _variant, _limit_s):
        return self._score(self.simulated, name, "simulated")

    def _score(self, table, name, how):
        scheme, _, said = name.partition(", " + how)
        assert not said, name
        self.asked.append(f"{scheme}: {how}")
        return scored(table[scheme]) if self.labeled else None

    def cosine(self, name, _variant):
        scheme = next(known for known in NAMES if name.startswith(known))
        return self.cosines[scheme] if isinstance(self.cosines, dict) else self.cosines


def search_of(script: Script, **goal) -> Search:
    bench = SimpleNamespace(progress=silent)
    bench.within = lambda _begin, _end: bench
    return Search(bench, Goal(**goal), script, {}, Path("folder"))


def rejected(search: Search) -> dict[str, str]:
    return {one.remedy: one.reason for one in search.rejected}


def test_the_fewest_bits_that_are_accurate_enough_are_kept(monkeypatch):
    script = Script(monkeypatch, on_cpu={EIGHT: -8.0, SUMS: -0.9})
    search = search_of(script)
    chosen = choose(search, Path("prepared.onnx"))
    assert chosen.scheme.name == SIXTEEN
    assert [kept.remedy for kept in search.kept] == [SIXTEEN]
    assert (
        "-8.00 points (-8.30 to -7.70) by its codes, computed on the CPU, on 128 of 1379 items"
        in rejected(search)[EIGHT]
    )
    assert rejected(search)[FLOAT] == "not tried: fewer bits are accurate enough"
    assert script.asked[-1] == f"{SIXTEEN}: simulated"
    assert f"{EIGHT}: simulated" not in script.asked, "what fails on the CPU is not simulated"


def test_the_simulator_has_the_last_word(monkeypatch):
    search = search_of(Script(monkeypatch, simulated={EIGHT: -3.0}))
    assert choose(search, Path("prepared.onnx")).scheme.name == SUMS
    assert "-3.00 points" in rejected(search)[EIGHT]
    assert "in the simulator" in rejected(search)[EIGHT]


def test_the_budget_and_its_strictness_count(monkeypatch):
    losing = {EIGHT: -0.4}
    assert choose(search_of(Script(monkeypatch, on_cpu=losing)), Path("p")).scheme.name == EIGHT
    assert choose(search_of(Script(monkeypatch, on_cpu=losing), strict=True), Path("p")).scheme.name == SUMS
    assert choose(search_of(Script(monkeypatch, on_cpu=losing), budget=0.3), Path("p")).scheme.name == SUMS


def test_what_is_whole_comes_before_what_has_fewer_bits(monkeypatch):
    search = search_of(Script(monkeypatch, compiled={EIGHT: whole(7, 6), SUMS: "it crashed"}))
    assert choose(search, Path("p")).scheme.name == SIXTEEN
    assert rejected(search)[EIGHT] == "7 pieces on the NPU, 6 nodes on the CPU (6 Erf: not supported)"
    assert rejected(search)[SUMS] == "it crashed"


def test_where_nothing_fits_the_nearest_goes_out_and_it_is_said(monkeypatch):
    everything = {EIGHT: whole(7, 6), SUMS: whole(7, 6), SIXTEEN: whole(2, 1), FLOAT: whole(3, 9)}
    search = search_of(Script(monkeypatch, compiled=everything))
    chosen = choose(search, Path("p"))
    assert chosen.scheme.name == SIXTEEN
    assert chosen.simulated is not None
    assert "2 pieces on the NPU, 1 nodes on the CPU" in search.notes[0]
    assert SIXTEEN not in rejected(search)


def test_of_those_that_lose_too_much_the_one_that_loses_least_goes_out(monkeypatch):
    lost = {EIGHT: -9.0, SUMS: -4.0, SIXTEEN: -2.0, FLOAT: -3.0}
    search = search_of(Script(monkeypatch, on_cpu=lost, simulated=lost))
    assert choose(search, Path("p")).scheme.name == SIXTEEN
    assert "-2.00 points" in search.notes[0]


def test_where_nothing_can_be_compiled_the_reason_is_the_error(monkeypatch):
    search = search_of(Script(monkeypatch, compiled=dict.fromkeys(NAMES, "Failed to finalize the graph")))
    with pytest.raises(UsageError, match=r"no form of this model can be compiled.*Failed to finalize"):
        choose(search, Path("p"))


def test_without_labels_outputs_decide(monkeypatch):
    script = Script(monkeypatch, cosine={EIGHT: 0.7, SUMS: 0.97, SIXTEEN: 0.985, FLOAT: 1.0})
    script.labeled = False
    search = search_of(script)
    assert choose(search, Path("p")).scheme.name == SIXTEEN
    assert rejected(search)[SUMS].startswith("cosine 0.9700")


def test_a_scheme_that_changes_nothing_is_passed_over(monkeypatch):
    search = search_of(Script(monkeypatch, on_cpu={EIGHT: -5.0}, skipped=(SUMS,)))
    assert choose(search, Path("p")).scheme.name == SIXTEEN
    assert "no normalization" in rejected(search)[SUMS]


def test_float16_is_not_judged_by_codes(monkeypatch):
    script = Script(monkeypatch, on_cpu=dict.fromkeys(NAMES, -9.0))
    assert choose(search_of(script), Path("p")).scheme.name == FLOAT
    assert f"{FLOAT}: its codes on the CPU" not in script.asked


def pairs(items: int = 100, rows: int = 60, batch: int = 4) -> Evaluation:
    """Pairs of rows, as STS-B has them, in feeds of ``batch`` rows."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, rows, (items, 2))
    feeds = [{"x": np.zeros((min(batch, rows - start), 3))} for start in range(0, rows, batch)]
    return Evaluation(
        "agreement", feeds, "none", rng.standard_normal(items),
        predict=lambda own, _standard: (own[places[:, 0]] * own[places[:, 1]]).sum(axis=1),
        score=lambda predictions, labels: 100 * float(np.corrcoef(predictions, labels)[0, 1]),
        rows_of=places,
    )  # fmt: skip


def test_a_part_is_seeded_and_grows_by_adding():
    task = pairs()
    small, large = choose_part(task, 10, seed=3), choose_part(task, 30, seed=3)
    assert set(small.items) < set(large.items)
    assert np.array_equal(small.items, choose_part(task, 10, seed=3).items)
    assert not np.array_equal(small.items, choose_part(task, 10, seed=4).items)
    assert set(task.rows_of[small.items].ravel()) <= set(small.rows)
    assert list(small.rows) == [row for feed in small.feeds for row in range(4 * feed, 4 * feed + 4)]


def test_a_slow_simulator_scores_fewer_items():
    task = pairs(items=400, rows=600, batch=1)
    counts = [len(largest_part(task, run_s, 100.0, seed=0).items) for run_s in (0.01, 0.8, 3.0, 1e6)]
    assert counts[0] == ITEMS[0]
    assert sorted(counts, reverse=True) == counts
    assert counts[-1] == ITEMS[-1], "the fewest, however slow it is"


def test_a_task_whose_items_are_unknown_has_no_part():
    task = Evaluation("m", [], "none", np.zeros(3), lambda own, _: own, lambda _p, _l: 0.0)
    assert choose_part(task, 10, seed=0) is None
    assert largest_part(task, 1.0, 10.0, seed=0) is None


def test_scores_of_a_part_need_only_its_rows():
    task = pairs()
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((60, 5)).astype(np.float32)
    standard = Scored(task, rows, rows)
    part = choose_part(task, 20, seed=0)

    same = scored_part(task, standard, part, rows[part.rows], seed=0)
    assert same.change == Interval(0.0, 0.0, 0.0)
    assert same.accuracy == same.standard
    assert (same.items, same.of, same.runs) == (20, 100, len(part.feeds))

    wrong = scored_part(task, standard, part, rng.standard_normal((len(part.rows), 5)).astype(np.float32), seed=0)
    assert wrong.change.estimate != 0
    assert wrong.standard == same.standard, "both sides on the same items"


def test_candidates_rank_by_what_is_on_the_cpu_then_by_what_is_lost():
    def candidate(compiled: Compilation, lost: float) -> Candidate:
        return Candidate(SCHEMES[0], Path("p"), compiled, simulated=scored(lost))

    assert candidate(whole(), -3.0).rank < candidate(whole(2, 1), 0.0).rank
    assert candidate(whole(), -1.0).rank < candidate(whole(), -2.0).rank
