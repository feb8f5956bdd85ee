"""Contenders with scripted times and faults, and a contest whose workers live in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from unlag.errors import ContenderError, UnlagError
from unlag.measure import bench as bench_module
from unlag.measure import contest as contest_module
from unlag.measure import exchange
from unlag.measure.contest import Contest
from unlag.measure.schedule import Protocol
from unlag.measure.worker import Worker, _guarded
from unlag.model.variant import Variant
from unlag.model.workload import Feed
from unlag.runtimes.fake import Fault, Script

FEED: Feed = {"x": np.ones((1, 4), np.float32)}
FAST = Protocol(rounds=4, max_rounds=8, launches=2, min_runs=3, min_turn_ms=0.0, warmup_limit_s=0.0, patience_s=60.0)


def cores() -> tuple[int, ...]:
    process = psutil.Process()
    return tuple(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else tuple(range(psutil.cpu_count() or 1))


def fake(folder: Path, name: str = "model", fault: Fault | None = None, **facts: Any) -> Variant:
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.encode(Script(fault=fault, **{"time_ms": 0.1, **facts})))
    return Variant("fake", str(path))


def contest_of(contenders: dict[str, Variant], protocol: Protocol = FAST, **options: Any) -> Contest:
    return Contest(contenders, FEED, cores=cores(), threads=1, protocol=protocol, **options)


class InProcess:
    """What a worker's process is to its parent, without a process: quick, and it tells what was asked of it."""

    alive: list[InProcess]
    started: list[str]

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.asked: list[exchange.Request] = []
        self._worker = Worker()
        InProcess.alive.append(self)
        InProcess.started.append(name)

    def ask(self, request: exchange.Request, reply: type[Any], patience_s: float) -> Any:
        assert patience_s > 0
        assert not self.frozen, f"{self.name} was asked while it was frozen"
        awake = [other.name for other in InProcess.alive if not other.frozen and other is not self]
        assert not awake, f"{awake} were left awake in the turn of {self.name}"
        self.asked.append(request)
        answer = _guarded(self._worker.answer, request)
        if isinstance(answer, exchange.Failed):
            raise (ContenderError if answer.usage else UnlagError)(f"{self.name}: {answer.message}")
        assert isinstance(answer, reply)
        return answer

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False

    def end(self) -> None:
        InProcess.alive.remove(self)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[InProcess]]:
    InProcess.alive, InProcess.started = [], []
    monkeypatch.setattr(contest_module, "WorkerProcess", InProcess)
    quiet(monkeypatch)
    yield InProcess
    assert not InProcess.alive


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round counts as disturbed, whatever else this machine does."""
    monkeypatch.setattr(contest_module, "disturbance", lambda *_: None)


def hurry(monkeypatch: pytest.MonkeyPatch, **rules: Any) -> None:
    """Short turns on every bench."""
    rules = {"min_turn_ms": 20.0, "min_runs": 3, "warmup_limit_s": 0.2, **rules}
    monkeypatch.setattr(bench_module, "Protocol", partial(Protocol, **rules))


def onnx_model(  # noqa: PLR0917 - a model has these parts
    path: Path,
    nodes: list[onnx.NodeProto],
    outputs: dict[str, list[int | str] | None],
    constants: dict[str, np.ndarray] | None = None,
    batch: int | str = "batch",
    width: int = 4,
) -> Path:
    """A model of one input ``x``, float32 [batch, width]; it counts on nothing but the runtime."""
    types = {"b": TensorProto.BOOL, "f": TensorProto.FLOAT, "s": TensorProto.STRING}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, width])],
        [
            helper.make_tensor_value_info(name, types[name[0] if name[0] in "bs" else "f"], shape)
            for name, shape in outputs.items()
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def linear(path: Path, weight: np.ndarray | None = None, output: str = "y") -> Variant:
    """``x @ weight``, by default a fixed matrix that keeps every entry of a row apart."""
    values = weight if weight is not None else np.diag(np.arange(1.0, 5.0)) + 0.25
    node = helper.make_node("MatMul", ["x", "w"], [output])
    onnx_model(path, [node], {output: ["batch", int(values.shape[1])]}, {"w": np.asarray(values, np.float32)})
    return Variant("onnxruntime", str(path))
