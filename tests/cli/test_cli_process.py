"""The command as a shell sees it: start-up, pipes, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from report import records
from unlag.report.record import to_json

UNLAG = [sys.executable, "-m", "unlag"]
SLOW = """
import sys, time
import unlag.pipeline
from unlag.cli import main

def compare(case, progress):
    try:
        print("measuring", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)

unlag.pipeline.compare = compare
sys.exit(main(["compare", "a.onnx", "b.onnx"]))
"""


def run(*words, **options):
    return subprocess.run([*UNLAG, *words], capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "run.json"
    path.write_bytes(to_json(records.explanation()))
    return str(path)


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_are_quick(word):
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        assert run(word).returncode == 0
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.5


def test_help_imports_no_runtime():
    code = "import sys; from unlag.cli import main; main(['--help']); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"onnx", "onnxruntime", "scipy", "numpy", "torch"} & set(out.split())


def test_unknown_options_and_missing_files_are_one_line():
    for words in (["compare", "--nonsense"], ["compare", "none.onnx", "none2.onnx"], ["report", "none.json"]):
        result = run(*words)
        assert result.returncode == 2, result.stderr
        assert result.stdout == ""
        assert result.stderr.splitlines()[-1].startswith("unlag: ")
        assert "Traceback" not in result.stderr


def test_a_pipe_gets_plain_text(stored):
    result = run("report", stored)
    assert result.returncode == 1
    assert "\x1b" not in result.stdout
    assert "Where the 52.0 ms go" in result.stdout
    narrow = run("report", stored, env={**os.environ, "COLUMNS": "50"})
    assert max(map(len, narrow.stdout.splitlines())) <= 50


def test_a_reader_that_goes_away_is_no_fault(stored):
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen([*UNLAG, "report", stored], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")  # noqa: PTH110
def test_a_full_standard_output_is_said(stored):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        result = subprocess.run([*UNLAG, "report", stored], stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 2
    assert result.stderr == b"unlag: can't write the report on standard output: No space left on device\n"


def test_an_output_that_cannot_show_signs_gets_others(stored):
    result = run("report", stored, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 1
    assert "3.2? slower" in result.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_unwind(number, code):
    process = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "measuring\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert out == "cleaned up\n"
    assert err.splitlines()[-1] == "unlag: stopped"
    assert "Traceback" not in err
