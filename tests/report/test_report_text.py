"""Golden texts and Markdown, and that neither width nor hostile names break them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from report import records
from unlag.measure.comparison import AskedFor, Verdict
from unlag.measure.statistics import Interval
from unlag.proof.explanation import KindTime
from unlag.report import to_markdown
from unlag.report.document import clean
from unlag.report.pages import verdict_lines
from unlag.report.to_markdown import escape
from unlag.report.to_text import TextLines, plain_text, render

GOLDEN = Path(__file__).parent / "golden"
RECORDS = {
    "comparison": records.comparison(),
    "inconclusive": records.inconclusive(),
    "by_shape": records.by_shape(),
    "explanation": records.explanation(),
    "quick": records.quick(records.comparison()),
    "against_itself": records.against_itself(),
    "fix": records.fix(),
}
HOSTILE = "<script>alert(1)</script>[red]\x1b[31m|`x`\u202e\n.onnx"


def text_of(record, width: int = 120, *, beside_article: bool = False) -> str:
    return plain_text(render(record, beside_article=beside_article), width)


def check(name: str, text: str) -> None:
    """Compare with the stored file; UPDATE_GOLDEN=1 stores it anew."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


@pytest.mark.parametrize("name", RECORDS)
def test_text_is_as_stored(name):
    check(f"{name}.txt", text_of(RECORDS[name], beside_article=True))


@pytest.mark.parametrize("name", RECORDS)
def test_markdown_is_as_stored(name):
    check(f"{name}.md", to_markdown.render(RECORDS[name], beside_article=True))


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 24])
@pytest.mark.parametrize("name", RECORDS)
def test_no_width_cuts_a_number_or_overflows(name, width):
    text = text_of(RECORDS[name], width, beside_article=True)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert not re.search(r"\S…", text)  # it may only stand between the ends of an interval
    squeezed = re.sub(r"\s+", "", text)
    for number in re.findall(r"\d[\d.]*", text_of(RECORDS[name], 200, beside_article=True)):
        assert number in squeezed


def hostile_records():
    comparison = records.comparison(variant=f"models/{HOSTILE}")
    comparison = msgspec.structs.replace(comparison, warnings=(HOSTILE,))
    cause = msgspec.structs.replace(records.explanation().causes[0], title=HOSTILE, reason=HOSTILE, where=(HOSTILE,))
    explanation = records.explanation()
    explanation = msgspec.structs.replace(
        explanation,
        comparison=comparison,
        causes=(cause, *explanation.causes[1:]),
        blocks=(msgspec.structs.replace(explanation.blocks[0], name=HOSTILE),),
    )
    fix = msgspec.structs.replace(records.fix(), explanation=explanation, output=HOSTILE, notes=(HOSTILE,))
    return comparison, explanation, fix


@pytest.mark.parametrize("record", hostile_records())
def test_text_shows_hostile_names_as_they_are(record):
    text = text_of(record, 400)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"<script>alert(1)</script>[red]\x1b[31m|`x`\u202e\x0a.onnx" in text


@pytest.mark.parametrize("record", hostile_records())
def test_markdown_escapes_hostile_names(record):
    outside_code = "".join(to_markdown.render(record).split("```")[::2])
    for bad in ("\x1b", "\u202e"):
        assert bad not in outside_code
    assert not re.search(r"(?<!\\)<script", outside_code)
    tables = [line for line in outside_code.splitlines() if line.startswith("|")]
    columns = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    assert all(4 <= count <= 8 for count in columns)


def test_command_fence_is_longer_than_what_it_holds():
    explanation = records.explanation()
    comparison = records.comparison(variant="a```b.onnx")
    text = to_markdown.render(msgspec.structs.replace(explanation, comparison=comparison))
    assert "````\nunlag fix" in text


def test_next_command_is_quoted_for_the_shell():
    explanation = msgspec.structs.replace(records.explanation(), comparison=records.comparison(variant="my model.onnx"))
    assert "unlag fix models/standard.onnx 'my model.onnx' --workload stsb -o fixed/" in text_of(explanation)


@pytest.mark.parametrize("text", ["1. one", "- one", "+ one", "a_b*c", "<b>", "&amp;", "# title", "a|b"])
def test_escape_leaves_nothing_that_means_something(text):
    escaped = escape(text)
    assert re.sub(r"\\(.)", r"\1", escaped) == text
    assert escaped != text


def test_clean_is_for_every_control_character():
    text = clean("".join(map(chr, [*range(32), 127, *range(128, 160), 0x2028, 0x202E, 0x200B, 0xDC80, 0xFEFF])))
    assert text.isprintable()
    assert clean("größe 32×128 · 模型") == "größe 32×128 · 模型"


def test_verdict_of_each_kind_is_said():
    said = {
        speed: verdict_lines(msgspec.structs.replace(records.comparison(), verdict=Verdict(speed, "same")))[0].text
        for speed in ("slower", "faster", "same", "inconclusive")
    }
    assert "slower than" in said["slower"]
    assert "faster than" in said["faster"]
    assert "as fast as" in said["same"]
    assert said["inconclusive"].startswith("inconclusive")


def test_quiet_form_has_a_line_for_each_shape():
    text = plain_text(TextLines(verdict_lines(records.by_shape())), 120)
    assert "at 1x32: flash.onnx,optimization=off is 1.25× faster" in text


def test_unbounded_intervals_are_said_to_be_so():
    unbounded = Interval(1.2, float("-inf"), float("inf"))
    comparison = msgspec.structs.replace(records.comparison(), slowdown=unbounded, noise=unbounded)
    text = text_of(comparison)
    assert "interval unbounded" in text
    assert "noise floor unknown" in text


SHAPES = AskedFor(("8x32", "1x128"), {"past": 16}, threads=2)


@pytest.mark.parametrize(
    ("workload", "scored", "words"),
    [
        ("stsb", True, "--workload stsb --shapes 8x32 --dim past=16 --threads 2"),
        ("random", False, "--shapes 8x32 --dim past=16 --threads 2"),
        ("my inputs.npz", False, "--workload 'my inputs.npz' --dim past=16 --threads 2"),
        ("labeled.npz", True, "--workload labeled.npz --shapes 8x32 --dim past=16 --threads 2"),
        ("mine:load", False, "--workload mine:load --shapes 8x32 --dim past=16 --threads 2"),
    ],
)
def test_next_command_repeats_what_decides_the_measurement(workload, scored, words):
    comparison = msgspec.structs.replace(records.comparison(), workload=workload, asked_for=SHAPES, shape="1x3x4x4")
    if not scored:
        standard = msgspec.structs.replace(comparison.standard, accuracy=None)
        comparison = msgspec.structs.replace(comparison, standard=standard)
    text = text_of(msgspec.structs.replace(records.explanation(), comparison=comparison), 400)
    assert f"unlag fix {records.STANDARD} {records.FLASH} {words} -o fixed/\n" in text


def test_what_need_not_be_said_again_is_not():
    comparison = msgspec.structs.replace(records.comparison(), workload="random", asked_for=AskedFor(("1x128",)))
    text = text_of(msgspec.structs.replace(records.explanation(), comparison=comparison), 400)
    assert f"unlag fix {records.STANDARD} {records.FLASH} -o fixed/\n" in text


def test_a_diagnosis_is_short_and_claims_no_numbers():
    text = text_of(records.quick(records.comparison()))
    assert len(text.splitlines()) < 22
    assert "Suspected, not measured" in text
    for wrong in (
        "Where the",
        "unexplained",
        "removing it wins",
        "not proven",
        "–  ",
        "Block by block",
        "Time by kind",
    ):
        assert wrong not in text
    assert re.search(r"1 +weights dequantized .* time\n", text)
    assert re.search(r"2 +attention scale missing .* accuracy\n", text)
    assert f"To measure them:  unlag explain {records.STANDARD}" in text


def test_a_diagnosis_that_finds_nothing_says_so_and_shows_where_the_time_is():
    text = text_of(records.nothing_found(records.quick(records.comparison())))
    assert "No cause was found." in text
    assert "Time by kind of operator" in text
    assert "To measure them" not in text


def test_an_open_verdict_is_not_called_a_lag_and_saved_evidence_gets_no_advice_on_rounds():
    open_verdict = records.quick(records.inconclusive())
    assert "Suspected, though no lag was measured" in text_of(open_verdict)
    assert "--rounds" in text_of(open_verdict)
    replayed = msgspec.structs.replace(open_verdict, replayed=True)
    assert "--rounds" not in text_of(replayed)
    assert "To measure them" in text_of(replayed)
    full = msgspec.structs.replace(records.explanation(), comparison=records.inconclusive())
    assert "What was tried, though the times may not differ" in text_of(full)


def test_a_model_against_itself_has_no_empty_sections():
    text = text_of(records.against_itself())
    assert "both are the same file with the same options" in text
    for empty in ("Where the", "What was tried", "unexplained", "Block by block"):
        assert empty not in text


def test_a_lag_without_causes_is_all_unexplained():
    explanation = records.nothing_found(records.quick(records.comparison()))
    text = text_of(msgspec.structs.replace(explanation, quick=False))
    assert "No cause was found: all of it is unexplained." in text
    assert "Time by kind of operator" in text


def test_a_suspected_cause_of_accuracy_costs_no_time():
    lossy = msgspec.structs.replace(
        records.explanation().causes[3],
        status="suspected",
        accuracy_cost=None,
        share_of_loss=None,
        affects=("accuracy",),
    )
    explanation = records.explanation()
    explanation = msgspec.structs.replace(
        explanation, causes=(*explanation.causes[:3], lossy), accuracy_reconciliation=None
    )
    time, points = text_of(explanation).split("What costs accuracy")
    assert "attention scale missing" not in time
    assert re.search(r"4 +attention scale missing +6 of 6 attention blocks +suspected\n", points)


def test_causes_that_are_no_cause_are_named():
    for text in (text_of(records.explanation(), 60), to_markdown.render(records.explanation()).replace("\\", "")):
        squeezed = " ".join(text.split())
        assert "Ruled out (2): redundant_copies, thread_oversubscription" in squeezed
        assert "Not checked: gpu_fallback · no CUDA device" in squeezed


def test_a_share_above_the_roofline_is_capped_and_explained():
    kinds = (KindTime("gemm", 17.1, 3.0, 0.81, 4.45), KindTime("control", 0.1, 0.2, None, 0.3))
    text = to_markdown.render(msgspec.structs.replace(records.explanation(), kinds=kinds)).replace("\\", "")
    assert "| gemm | 17.1 ms | 3.0 ms | −14.1 ms | 81 % | > 100 % |" in text
    assert "fewer bits than float32" in text
    assert "control: If, Loop and Scan without what runs in their bodies" in text
    calm = to_markdown.render(records.explanation())
    assert "fewer bits" not in calm
    assert "control:" not in calm


def test_a_side_that_has_no_block_times_has_no_column_but_the_reason():
    explanation = records.explanation()
    blocks = tuple(msgspec.structs.replace(block, standard_ms=None) for block in explanation.blocks)
    why = "the standard's time can't be split by block: it was renamed"
    text = text_of(msgspec.structs.replace(explanation, blocks=blocks, untimed_blocks=(why,)))
    assert re.search(r"Block by block +variant +error", text)
    assert why in text


def test_integer_weights_that_nothing_computes_with_are_said():
    said = "the variant's int8 weights are dequantized when it is loaded"
    assert said in text_of(msgspec.structs.replace(records.explanation(), folded_weights=said))
    assert said not in text_of(records.explanation())


def test_equal_file_names_are_told_apart():
    options = verdict_lines(records.comparison("a/model.onnx", "a/model.onnx,optimization=off"))
    folders = verdict_lines(records.comparison("a/model.onnx", "b/model.onnx"))
    assert "model.onnx,optimization=off is 3.2× slower than model.onnx" in options[0].text
    assert "b/model.onnx is 3.2× slower than a/model.onnx" in folders[0].text


def test_a_fix_without_labels_or_article_has_no_accuracy():
    stages = tuple(
        msgspec.structs.replace(stage, accuracy=None, accuracy_change=None) for stage in records.fix().stages
    )
    bare = msgspec.structs.replace(records.fix(), stages=stages, standard_accuracy=None)
    text = text_of(bare)
    assert "Beside the article" not in text
    assert "Hardware-optimized" in text
