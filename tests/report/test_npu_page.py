from __future__ import annotations

import msgspec
import pytest

from report.records import comparison, pm
from unlag.cli.exit_codes import FINE, LAGS, exit_code
from unlag.measure.comparison import Accuracy
from unlag.measure.statistics import Interval
from unlag.proof.explain import nothing_to_explain
from unlag.report import to_html, to_markdown
from unlag.report.document import Line
from unlag.report.npu_page import npu_page
from unlag.report.pages import deciding_comparison, page_of, verdict_lines
from unlag.report.record import parse_record, to_json
from unlag.stages.fixed import Fallback, Fix, Kept, Npu, OnNpu, PartScore, Rejected


def scored(change: float) -> PartScore:
    return PartScore(
        accuracy=Accuracy("STS-B Spearman", 78.2 + change), standard=Accuracy("STS-B Spearman", 78.2),
        change=Interval(change, change - 0.5, change + 0.5), items=128, of=1379, runs=253, seed=0,
    )  # fmt: skip


BEFORE = OnNpu(
    model="the standard, quantized by ONNX Runtime's defaults", partitions=7, npu_nodes=699, fallback_nodes=7,
    fallback=(Fallback("Erf", "Operators of type `Erf` are not supported", 6), Fallback("<b>", "no\x1b[31m", 1)),
    context_bytes=23_500_000, operators={"Reshape": 49, "Transpose": 24}, cosine=0.28, by_codes=scored(-31.4),
)  # fmt: skip
NPU = Npu(
    model="8-bit weights, 16-bit activations", partitions=1, npu_nodes=599, context_bytes=23_200_000,
    operators={"Reshape": 27, "Transpose": 24, "Convert": 14}, cosine=0.9973, simulated=scored(0.1), before=BEFORE,
    compiler="onnxruntime-qnn 2.7.0", chip="60", kept=(Kept("masks", "6 changed"),),
    rejected=(Rejected("8 bits", "-8.78 points"),), simulated_run_s=1.2, not_measured=("how long a run takes",),
)  # fmt: skip
FIX = Fix(
    explanation=nothing_to_explain(comparison()), stages=(), npu=NPU, output="fixed", result=None,
    standard_latency_ms=pm(23.4, 0.2), standard_accuracy=Accuracy("STS-B Spearman", 82.03),
    standard_size_bytes=90_400_000,
)  # fmt: skip


def changed(**parts: object) -> Fix:
    return msgspec.structs.replace(FIX, npu=msgspec.structs.replace(NPU, **parts))


def told(record: Fix) -> str:
    return " ".join(to_markdown.render(record).split())


def test_before_and_after_stand_side_by_side():
    text = told(FIX)
    assert "runs on the NPU in one piece: 599 nodes, none on the CPU" in text
    assert "0.1 points more accurate in the simulator" in text
    assert "on the same 128 of 1379 items" in text
    for row in ("| pieces on the NPU | 7 | 1 |", "| nodes on the CPU | 7 | 0 |", "| of these Transpose | 24 | 24 |",
                "| context binary | 23.5 MB | 23.2 MB |", "| cosine in the simulator | 0.2800 | 0.9973 |"):  # fmt: skip
        assert row in text, row
    assert "−31.4 ± 0.5 points, 128 of 1379 items" in text
    assert "Operators of type" in text
    assert "-8.78 points" in text


def test_a_time_of_the_simulator_is_never_a_time_of_an_npu():
    text = told(FIX)
    assert "a run takes 1200 ms in its simulator on a core of this machine, which is no time of an NPU" in text
    assert "Not measured: how long a run takes" in text
    assert "faster" not in text
    assert "slower" not in text


def test_pieces_and_nodes_on_the_cpu_are_said_first():
    record = msgspec.structs.replace(changed(partitions=2, fallback_nodes=3), notes=("nothing that was tried fits",))
    lines = verdict_lines(record)
    assert [line.text for line in lines[:2]] == [
        "nothing that was tried fits",
        "the fixed model runs on the NPU in 2 pieces, with 3 nodes on the CPU",
    ]
    assert exit_code(record, 0.5) == LAGS


@pytest.mark.parametrize(("change", "budget", "code"), [(-0.4, 0.5, FINE), (-0.6, 0.5, LAGS), (0.3, 0.0, FINE)])
def test_the_exit_code_is_about_place_and_accuracy(change, budget, code):
    assert exit_code(changed(simulated=scored(change)), budget) == code
    assert exit_code(changed(simulated=None), budget) == FINE, "without labels nothing was seen to be lost"


def test_what_could_not_be_compiled_has_no_numbers():
    failed = OnNpu(model="naive", failed="Failed to finalize QNN graph")
    text = told(changed(before=failed))
    assert "before: Failed to finalize QNN graph" in text
    assert "| nodes on the NPU | – | 599 |" in text


def test_without_labels_outputs_are_compared():
    assert "no accuracy was measured: its outputs have cosine 0.9973" in told(changed(simulated=None))


def test_all_forms_show_it_and_escape_what_strangers_wrote():
    html = to_html.render(FIX)
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "\x1b" not in html
    page = npu_page(FIX, NPU)
    assert page == page_of(FIX, full=True)
    assert all(section.elements for section in page.sections)


def test_the_record_comes_back_from_json():
    assert parse_record(to_json(FIX), "run.json") == FIX
    content = msgspec.json.decode(to_json(FIX))["npu"]
    contract = ("partitions", "npu_nodes", "fallback_nodes", "fallback", "context_bytes")
    assert [content[name] for name in contract] == [1, 599, 0, [], 23_200_000]
    assert {"operator", "reason"} <= set(content["before"]["fallback"][0])


def test_nothing_was_timed_that_could_decide():
    with pytest.raises(ValueError, match="nothing was timed"):
        deciding_comparison(FIX)
    assert all(isinstance(line, Line) for line in verdict_lines(FIX))
