"""How a workload is found by what the user writes."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from encoder_requests import encoder_request
from unlag import workloads
from unlag.errors import UsageError
from unlag.workloads.contract import load_workload, workload_forms


def test_every_file_is_found_and_offers_load() -> None:
    assert workload_forms() == ("module:function", "FILE.npz", "random", "sentiment", "stsb")
    for path in Path(workloads.__file__).parent.glob("[a-z]*.py"):
        if path.stem != "contract":
            assert callable(importlib.import_module(f"unlag.workloads.{path.stem}").load)


def test_a_name_finds_its_file() -> None:
    assert load_workload("random", encoder_request()).name == "random"
    assert load_workload("stsb", encoder_request()).name == "stsb"


def test_a_file_is_known_by_its_ending(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, input_ids=np.ones((1, 4), np.int64))
    workload = load_workload(str(path), encoder_request(names=("input_ids",)))
    assert workload.feed["input_ids"].shape == (1, 4)


def test_a_function_is_known_by_its_colon() -> None:
    with pytest.raises(UsageError, match="can't import absent"):
        load_workload("absent.module:function", encoder_request())


@pytest.mark.parametrize("text", ["", "stsB", "npz", "contract", "_text", "module_function", "FILE", "a:b:c", "../x"])
def test_anything_else_lists_what_there_is(text: str) -> None:
    with pytest.raises(UsageError, match="there is no workload") as caught:
        load_workload(text, encoder_request())
    assert "stsb" in caught.value.hint
    assert "FILE.npz" in caught.value.hint


def test_a_slip_gets_a_suggestion() -> None:
    for text in ("sts-b", "stsB", "stbs"):
        with pytest.raises(UsageError) as caught:
            load_workload(text, encoder_request())
        assert caught.value.hint.startswith("did you mean stsb? workloads: ")
    with pytest.raises(UsageError) as caught:
        load_workload("inputs.npy", encoder_request())
    assert "did you mean" not in caught.value.hint
