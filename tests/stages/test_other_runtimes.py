"""Other installed runtimes as candidates: what is tried, what is kept, and what is only told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.stub_workshop import StubWorkshop, pm, trial
from unlag.errors import UsageError
from unlag.model.variant import Variant
from unlag.stages import native, other_runtimes
from unlag.stages.goal import Goal
from unlag.stages.other_runtimes import try_other_runtimes
from unlag.stages.plan import Plan
from unlag.stages.screen import Screened
from unlag.stages.search import Trial

CURRENT = Plan("dynamic_int8", ("fuse_attention",), {"disable": "SkipLayerNormFusion"})


@dataclass(frozen=True)
class StubRuntime:
    """Takes ONNX files, has one tool of its own and one setting."""

    suffix: str = ".onnx"

    def takes(self, path: Path) -> bool:
        return path.suffix == self.suffix

    def recipes(self) -> dict[str, object]:
        return {"static_int8": None}

    def settings(self, threads: int) -> dict[str, dict[str, str]]:
        return {"throughput hint": {"hint": "throughput", "threads": str(threads)}}


@dataclass
class Shop(StubWorkshop):
    """A workshop for one ONNX model."""

    bench: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            threads=2, case=SimpleNamespace(standard=Variant("onnxruntime", "standard.onnx"))
        )
    )

    def make(self, plan: Plan) -> Variant:
        return Variant(plan.runtime or "onnxruntime", "plan.onnx", plan.options)


@pytest.fixture
def found(monkeypatch) -> dict[str, StubRuntime]:
    """Two other runtimes, and one that is not installed; no setting promises anything."""
    runtimes = {"fast": StubRuntime(), "slow": StubRuntime(), "scripts": StubRuntime(".json")}

    def find(name: str) -> StubRuntime:
        if name == "absent":
            raise UsageError("runtime absent can't be used here: pip install 'unlag[absent]'")
        return runtimes[name]

    monkeypatch.setattr(other_runtimes, "runtime_names", lambda: ("absent", "fast", "onnxruntime", "scripts", "slow"))
    monkeypatch.setattr(other_runtimes, "find_runtime", find)
    monkeypatch.setattr(native, "screen", lambda *_: Screened({"throughput hint": pm(1.2)}))
    return runtimes


def tried(trials: dict[str, Trial]) -> tuple[Plan, dict[str, str], list[str], dict[str, object], Shop]:
    shop = Shop(trials)
    plan, decision, told = try_other_runtimes(shop, CURRENT, Goal())
    rejected = {one.remedy: one.reason for one in decision.rejected}
    return plan, rejected, [kept.remedy for kept in decision.kept], {one.runtime: one for one in told}, shop


@pytest.mark.usefixtures("found")
def test_the_fastest_that_is_accurate_enough_is_moved_to_and_every_runtimes_best_is_told():
    plan, rejected, kept, told, shop = tried(
        {
            "fast, the standard": trial(0.9, size_bytes=400),
            "fast, static_int8": trial(0.5, loss=0.2),
            "slow, the standard": trial(1.4),
            "slow, static_int8": trial(0.4, loss=3.0),
        }
    )
    assert plan == Plan(from_standard=True, runtime="fast", recipe="static_int8")
    assert kept == ["fast, static_int8"]
    assert (told["fast"].model, told["fast"].ratio.estimate) == ("static_int8", 0.5)
    assert (told["slow"].model, told["slow"].ratio.estimate) == ("the standard", 1.4)
    assert rejected["absent"].endswith("pip install 'unlag[absent]'")
    assert rejected["fast, the standard"].endswith("fast, static_int8 is as good or better")
    assert "outside the budget" in rejected["slow, static_int8"]
    assert "no gain in a quick look" in rejected["throughput hint"]
    assert all(current == CURRENT for _, current, _ in shop.searches), "all are told against the same model"


@pytest.mark.usefixtures("found")
def test_the_current_model_is_tried_without_the_options_of_its_own_runtime():
    *_, shop = tried({"fast, the standard": trial(1.1)})
    plans = shop.searches[0][2]
    assert plans["fast, the model of the stages so far"] == Plan("dynamic_int8", ("fuse_attention",), runtime="fast")


@pytest.mark.usefixtures("found")
def test_nothing_is_moved_where_no_other_runtime_is_faster():
    plan, rejected, kept, told, _ = tried({"fast, the standard": trial(1.1), "slow, static_int8": trial(1.005)})
    assert plan == CURRENT
    assert kept == []
    assert set(told) == {"fast", "slow"}
    assert rejected["fast, the standard"].startswith("no measured gain")


@pytest.mark.usefixtures("found")
def test_of_two_runtimes_that_would_help_the_slower_one_is_rejected_for_the_other():
    plan, rejected, *_ = tried({"fast, static_int8": trial(0.5), "slow, static_int8": trial(0.8)})
    assert plan.runtime == "fast"
    assert rejected["slow, static_int8"].endswith("fast, static_int8 is as good or better")
    plan, rejected, *_ = tried({"fast, static_int8": trial(0.8), "slow, static_int8": trial(0.5)})
    assert plan.runtime == "slow"
