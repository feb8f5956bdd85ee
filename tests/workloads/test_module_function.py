"""Workloads from the user's own code: what is accepted, and that a fault in it is the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unlag.errors import UsageError
from unlag.model.workload import Shape, Signature, TensorInfo, Workload, WorkloadRequest
from unlag.workloads import module_function

SOURCE = """
import numpy as np
from unlag.errors import UsageError
from unlag.model.workload import Workload

def arrays(request):
    return {"x": np.ones((request.shape.batch, 4), np.float32)}

def workload(request):
    return Workload(name="mine", shape="1x4", feed=arrays(request))

def wrong_shape(request):
    return {"x": np.ones((1, 3), np.float32)}

def wrong_workload(request):
    return Workload(name="mine", shape="1x3", feed=wrong_shape(request))

def nothing(request):
    pass

def fails(request):
    raise RuntimeError("no data here")

def refuses(request):
    raise UsageError("only for 1x8")

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine_for_tests.py").write_text(SOURCE)
    (tmp_path / "broken_for_tests.py").write_text("import absent_module_for_tests")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield
    assert sys.path == before
    sys.modules.pop("mine_for_tests", None)


def load(text: str) -> Workload:
    signature = Signature((TensorInfo("x", "float32", ("batch", 4)),), ())
    return module_function.load(WorkloadRequest(text, signature, Shape(2, 1), {}, 0))


def test_arrays_become_a_workload() -> None:
    made = load("mine_for_tests:arrays")
    assert made.name == "mine_for_tests:arrays"
    assert made.shape == "2x4"
    assert made.feed["x"].shape == (2, 4)
    assert len(made.agreement) == 1


def test_a_workload_is_taken_as_it_is() -> None:
    assert load("mine_for_tests:workload").name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("absent_module_for_tests:f", "can't import absent_module_for_tests: ModuleNotFoundError"),
        ("broken_for_tests:f", "can't import broken_for_tests"),
        ("mine_for_tests:absent", "no function absent"),
        ("mine_for_tests:number", "no function number"),
        ("mine_for_tests:nothing", "returned NoneType"),
        ("mine_for_tests:fails", "failed: RuntimeError: no data here"),
        ("mine_for_tests:refuses", "only for 1x8"),
        ("mine_for_tests:wrong_shape", r"x is of shape \[1, 3\]"),
        ("mine_for_tests:wrong_workload", r"x is of shape \[1, 3\]"),
    ],
)
def test_faults_are_usage_errors(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(text)
