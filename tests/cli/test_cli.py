"""Arguments in, report out, exit code: with a scripted pipeline."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from report import records
from unlag.cli import main
from unlag.cli.commands import app
from unlag.cli.exit_codes import exit_code
from unlag.cli.options import dims_of
from unlag.errors import ContenderError, UnlagError, UsageError
from unlag.measure.comparison import Verdict
from unlag.measure.statistics import Interval
from unlag.model.workload import Shape
from unlag.observe.evidence import Claim
from unlag.proof.explain import Extent
from unlag.report.record import read_record, to_json


class Script:
    """Stands for the pipeline: remembers its case, then returns or raises what it was told to."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.calls = []

    def __call__(self, *arguments, **wishes):
        self.calls.append(arguments)
        self.wishes = wishes
        arguments[-1]("timing: round 1", 0.5)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def pipeline(monkeypatch):
    scripts = {
        "compare": Script(records.comparison()),
        "explain": Script(records.explanation()),
        "fix": Script(records.fix()),
        "demo": Script(records.fix()),
    }
    for name, script in scripts.items():
        monkeypatch.setattr(f"unlag.pipeline.{name}", script)
    return scripts


def judged(speed: str, accuracy: str = "same"):
    return msgspec.structs.replace(records.comparison(), verdict=Verdict(speed, accuracy))


PAIR = ["models/standard.onnx", "models/flash.onnx"]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (judged("same"), 0),
        (judged("faster", "better"), 0),
        (judged("faster", "not_measured"), 0),
        (judged("slower"), 1),
        (judged("faster", "worse"), 1),
        (judged("inconclusive"), 3),
        (judged("inconclusive", "worse"), 1),
        (msgspec.structs.replace(judged("faster"), other_shapes=(judged("slower"),)), 1),
        (msgspec.structs.replace(judged("faster"), other_shapes=(judged("inconclusive"),)), 3),
    ],
)
def test_exit_code_of_compare(pipeline, capsys, record, code):
    pipeline["compare"].outcome = record
    assert main(["compare", *PAIR]) == code
    assert "flash.onnx" in capsys.readouterr().out


@pytest.mark.usefixtures("pipeline")
def test_exit_codes_of_the_other_commands(capsys, tmp_path):
    assert main(["explain", *PAIR]) == 1
    assert main(["fix", *PAIR, "-o", str(tmp_path / "fixed")]) == 0
    assert main(["demo", str(tmp_path / "demo")]) == 0
    assert "Beside the article" in capsys.readouterr().out


def test_a_fix_may_lose_its_budget_and_no_more():
    result = msgspec.structs.replace(
        records.fix().result, accuracy_change=Interval(-0.4, -0.6, -0.2), verdict=Verdict("faster", "worse")
    )
    fix = msgspec.structs.replace(records.fix(), result=result)
    assert exit_code(fix, accuracy_budget=0.5) == 0
    assert exit_code(fix, accuracy_budget=0.3) == 1


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (UsageError("a.onnx is empty", hint="export it again"), 2, "unlag: a.onnx is empty (export it again)"),
        (ContenderError("the variant was killed by signal 9"), 2, "unlag: the variant was killed by signal 9"),
        (UnlagError("no such state"), 4, "this is a fault of unlag; run again with --debug and report it"),
        (KeyError("x"), 4, "unlag: KeyError: 'x': this is a fault of unlag"),
        (ValueError("two\nlines"), 4, "unlag: ValueError: two: this"),
        (MemoryError(), 2, "unlag: out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/mnt/x"), 2, "unlag: No space left on device: /mnt/x"),
        (KeyboardInterrupt(), 130, "unlag: stopped\n"),
    ],
)
def test_each_fault_is_one_line_and_a_code(pipeline, capsys, fault, code, words):
    pipeline["compare"].outcome = fault
    assert main(["compare", *PAIR, "--quiet"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_a_fix_that_is_stopped_says_how_it_goes_on(pipeline, capsys, tmp_path):
    pipeline["fix"].outcome = KeyboardInterrupt()
    assert main(["fix", *PAIR, "-o", str(tmp_path / "fixed"), "--quiet"]) == 130
    assert "unlag: stopped (the same command with --resume goes on" in capsys.readouterr().err


def test_debug_shows_the_traceback(pipeline, capsys):
    pipeline["compare"].outcome = KeyError("x")
    assert main(["compare", *PAIR, "--debug"]) == 4
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "report it with the traceback above" in err


def test_control_characters_never_reach_the_terminal(pipeline, capsys):
    pipeline["compare"].outcome = UsageError("\x1b[31mred\x1b[0m.onnx\nis broken")
    assert main(["compare", *PAIR, "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert err.count("\n") == 1


def test_options_become_the_case(pipeline):
    words = "--workload stsb --shapes 1x32,8x128 --dim past=16 --dim a=b=2 --rounds 7 --threads 1 --seed 3"
    main(["compare", "a.onnx,threads=1", "b.onnx", *words.split(), "--patience", "9", "--accuracy-budget", "1.5"])
    case = pipeline["compare"].calls[0][0]
    assert case.standard.options == {"threads": "1"}
    assert case.workload == "stsb"
    assert case.shapes == (Shape(1, 32), Shape(8, 128))
    assert case.dims == {"past": 16, "a=b": 2}
    assert (case.rounds, case.max_rounds, case.threads, case.seed) == (7, 35, 1, 3)
    assert (case.patience_s, case.accuracy_budget) == (9.0, 1.5)


@pytest.mark.parametrize(
    "words",
    [
        "compare a.onnx",
        "compare a.onnx b.onnx c.onnx",
        "compare a.onnx b.onnx --nonsense",
        "nonsense",
        "compare a.onnx b.onnx --shapes 1",
        "compare a.onnx b.onnx --shapes 1x8,1x8",
        "compare a.onnx b.onnx --shapes 0x8",
        "compare a.onnx b.onnx --dim n",
        "compare a.onnx b.onnx --dim n=0",
        "compare a.onnx b.onnx --dim n=1 --dim n=2",
        "compare a.onnx b.onnx --rounds 1",
        "compare a.onnx b.onnx --rounds many",
        "compare a.onnx b.onnx --rounds 9 --max-rounds 8",
        "compare a.onnx b.onnx --threads 0",
        "compare a.onnx b.onnx --seed -1",
        "compare a.onnx b.onnx --patience 0",
        "compare a.onnx b.onnx --accuracy-budget nan",
        "compare ,threads=1 b.onnx",
        "fix a.onnx b.onnx",
        "fix a.onnx b.onnx -o new --target tpu",
        "compare a.onnx b.onnx --json /no/such/folder/x.json",
        "compare a.onnx b.onnx --json -",
        "compare a.onnx b.onnx --html /",
        "compare a.onnx b.onnx --html same --markdown same",
        "compare a.onnx b.onnx --json b.onnx",
        "report nothing.json",
        "causes nonsense",
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_measured(pipeline, capsys, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("unlag: ")
    assert err.count("\n") == 1
    assert not any(script.calls for script in pipeline.values())


def test_an_unknown_cause_names_near_ones(capsys):
    from unlag.causes.contract import find_causes  # noqa: PLC0415

    known = find_causes()[0].id
    assert main(["causes", known[:-1]]) == 2
    assert known in capsys.readouterr().err


def test_a_cause_that_is_nothing_like_one_gets_no_names(capsys):
    assert main(["causes", "memory"]) == 2
    err = capsys.readouterr().err
    assert "did you mean" not in err
    assert "unlag causes lists them" in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["fix", *PAIR, "-o", "new", "--objective", "latencey"], "did you mean latency? objectives: "),
        (["fix", *PAIR, "-o", "new", "--target", "gpus"], "did you mean gpu? targets: "),
        (["fix", *PAIR, "-o", "new", "--target", "tpu"], "(targets: cpu, gpu, npu)"),
    ],
)
@pytest.mark.usefixtures("pipeline")
def test_mistyped_names_get_a_suggestion(capsys, words, hint):
    assert main(words) == 2
    assert hint in capsys.readouterr().err


def test_causes_are_listed_and_explained(capsys):
    assert main(["causes"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert listed
    for cause in listed:
        assert main(["causes", cause]) == 0
        explained = capsys.readouterr().out
        assert explained.startswith(f"{cause}\n")
        assert "Why it costs:" in explained
        assert "`" not in explained
        assert not re.search(r"stage \d", explained)


def test_env_says_what_is_known_and_what_is_not(capsys, tmp_path):
    assert main(["env", "--json", str(tmp_path / "env.json")]) == 0
    out = capsys.readouterr().out
    assert "processor" in out
    content = json.loads((tmp_path / "env.json").read_bytes())
    assert content["kind"] == "environment"
    assert {"host", "advice"} <= set(content)


@pytest.mark.usefixtures("pipeline")
def test_files_are_written_and_can_be_shown_again(capsys, tmp_path):
    files = {form: tmp_path / f"run.{form}" for form in ("json", "html", "markdown")}
    options = [word for form, path in files.items() for word in (f"--{form}", str(path))]
    assert main(["explain", *PAIR, *options]) == 1
    first = capsys.readouterr().out
    assert read_record(files["json"]) == records.explanation()
    assert files["html"].read_text("utf-8").startswith("<!DOCTYPE html>")
    assert files["markdown"].read_text("utf-8").startswith("# Why")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.json", "run.markdown"]
    assert main(["report", str(files["json"])]) == 1
    assert capsys.readouterr().out == first


@pytest.mark.usefixtures("pipeline")
def test_quiet_prints_the_verdict_only(capsys):
    main(["explain", *PAIR, "--quiet"])
    out, err = capsys.readouterr()
    assert len(out.splitlines()) <= 4
    assert "3.2× slower" in out
    assert err == ""


@pytest.mark.usefixtures("pipeline")
def test_a_report_survives_a_file_that_cannot_be_written(capsys, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    old = tmp_path / "run.json"
    old.write_text("old")
    assert main(["compare", *PAIR, "--json", str(old)]) == 2
    out, err = capsys.readouterr()
    assert "3.2× slower" in out
    assert err.splitlines()[-1] == f"unlag: can't write {old}: No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert old.read_text() == "old"


@pytest.mark.usefixtures("pipeline")
def test_a_fix_never_fills_a_strangers_folder(capsys, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["fix", *PAIR, "-o", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    (tmp_path / "run.json").write_bytes(to_json(records.fix()))
    assert main(["fix", *PAIR, "-o", str(tmp_path)]) == 0


def test_dims_keep_what_stands_before_the_last_equals_sign():
    assert dims_of(["a=b=3"]) == {"a=b": 3}
    assert dims_of(None) == {}


@pytest.mark.parametrize("command", ["compare", "explain", "diagnose", "fix", "demo", "env", "causes", "report"])
def test_help_has_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: unlag {command}" in result.output


def test_no_arguments_shows_help(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.usefixtures("pipeline")
def test_names_that_are_no_text_are_refused(capsys):
    assert main(["compare", "a\udcff.onnx", "b.onnx"]) == 2
    assert "not valid UTF-8" in capsys.readouterr().err


@pytest.mark.usefixtures("pipeline")
def test_devices_are_written_directly():
    assert main(["compare", *PAIR, "--json", "/dev/null", "--html", "/dev/null"]) == 1
    assert Path("/dev/null").is_char_device()


def test_how_far_an_explanation_goes_is_handed_on(pipeline):
    main(["explain", *PAIR, "--graft", "--claim-standard-ms", "23.7", "--claim-variant-ms", "75.4"])
    assert pipeline["explain"].wishes["extent"] == Extent(graft=True, claim=Claim(23.7, 75.4))
    main(["explain", *PAIR, "--quick"])
    assert pipeline["explain"].wishes == {"extent": Extent(quick=True), "keep": None}


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--claim-standard-ms 0", "--claim-standard-ms is 0.0; it must be a finite number above 0"),
        ("--claim-variant-ms -3", "--claim-variant-ms is -3.0;"),
        ("--claim-variant-ms inf", "--claim-variant-ms is inf; it must be a finite number above 0"),
        ("--claim-standard-ms nan", "--claim-standard-ms is nan;"),
        ("--quick --graft", "--graft has to measure and --quick only diagnoses"),
        ("--quick --claim-variant-ms 3", "--claim-variant-ms has to measure and --quick only diagnoses"),
        ("--rounds 1", "--rounds is 1; it must be at least 2"),
        ("--max-rounds 2", "--max-rounds is 2, fewer than the 5 rounds"),
        ("--accuracy-budget inf", "--accuracy-budget is inf;"),
    ],
)
def test_wishes_that_make_no_sense_are_refused_by_the_names_of_options(capsys, options, words):
    assert main(["explain", *PAIR, *options.split()]) == 2
    assert capsys.readouterr().err.startswith(f"unlag: {words}")


@pytest.mark.usefixtures("pipeline")
def test_names_of_files_are_not_taken_for_options(capsys):
    assert main(["explain", "quick.onnx,threads=1,graft", "rounds.onnx"]) == 2
    assert "'quick.onnx,threads=1,graft': 'graft' is not of the form" in capsys.readouterr().err


def test_the_article_stands_beside_a_fix_only(capsys, tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(to_json(records.explanation()))
    assert main(["report", str(path), "--beside-article"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "holds no fix but a record of kind 'explanation' (leave --beside-article out)" in err
    path.write_bytes(to_json(records.fix()))
    assert main(["report", str(path), "--beside-article"]) == 0
    assert "Beside the article" in capsys.readouterr().out


def test_the_help_of_claims_says_of_what_they_are():
    text = " ".join(CliRunner().invoke(app, ["explain", "--help"]).output.split())
    assert "The standard's time as you measured it" in text
    assert "The variant's time as you measured it" in text


@pytest.mark.parametrize("option", ["--save-evidence", "--json", "--html", "--markdown"])
@pytest.mark.parametrize("name", ["standard.onnx", "variant.onnx", "inputs.npz"])
def test_no_output_replaces_an_input(pipeline, tmp_path, capsys, option, name):
    paths = {file: tmp_path / file for file in ("standard.onnx", "variant.onnx", "inputs.npz")}
    for path in paths.values():
        path.write_bytes(b"precious")
    models = [str(paths["standard.onnx"]), str(paths["variant.onnx"])]
    arguments = ["explain", *models, "--workload", str(paths["inputs.npz"]), option, str(paths[name])]
    assert main(arguments) == 2
    assert "it is the input" in capsys.readouterr().err
    assert paths[name].read_bytes() == b"precious"
    assert not pipeline["explain"].calls, "nothing is measured for it"


def test_evidence_and_report_can_not_share_a_file(pipeline, tmp_path, capsys):
    shared = str(tmp_path / "x.json")
    assert main(["explain", *PAIR, "--save-evidence", shared, "--json", shared]) == 2
    assert "another file of this run goes there" in capsys.readouterr().err
    assert not pipeline["explain"].calls
