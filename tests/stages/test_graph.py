"""The graph stage: mended first, then fused; what it keeps, and how few models it measures for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest

from measure.scripted import hurry, quiet
from planting import OFF, flash, tiny_bert, tiny_feed
from rewriting import kinds, outputs, parsed, relative_error
from stages.stub_workshop import StubWorkshop, pm, trial
from unlag.causes.contract import Step
from unlag.measure import compare as measuring
from unlag.measure.bench import open_bench
from unlag.measure.statistics import Interval
from unlag.model.case import Case
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.stages import fusing, graph
from unlag.stages.fixed import Rejected
from unlag.stages.fusing import RIVALS, Fusing
from unlag.stages.glance import glance
from unlag.stages.goal import Goal
from unlag.stages.graph import editing, restructure_graph
from unlag.stages.plan import EDITING, Plan, build, remedies_of
from unlag.stages.rehearsal import Rehearsal
from unlag.stages.screen import Screened
from unlag.stages.search import Workshop
from unlag.stages.worth import without

CURRENT = Plan(precision="float32")
OFF_OPTION = "disable=SkipLayerNormFusion"
Times = Callable[[frozenset[str]], float]


@dataclass
class Script:
    """A graph in which these fusions have something to do, and how long each plan's model takes."""

    at_work: Mapping[str, frozenset[str]]
    """Fusions, each with one that must be applied before."""
    time_of: Times
    half: float = 0.003
    looks: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def changes(self, beside: tuple[str, ...], name: str) -> bool:
        return name in self.at_work and self.at_work[name] <= set(beside)

    def counts(self, ids: tuple[str, ...]) -> dict[str, int]:
        return {name: int(name in self.at_work and self.at_work[name] <= set(ids)) for name in ids}

    def glance(self, _workshop: object, what: str, current: Plan, candidates: Mapping[str, Plan]) -> Screened:
        self.looks.append((what, tuple(candidates)))
        return Screened({name: pm(self.ratio(plan, current), self.half) for name, plan in candidates.items()})

    def ratio(self, plan: Plan, current: Plan) -> float:
        ids, before = (frozenset(p.remedies) | {f"{k}={v}" for k, v in p.options.items()} for p in (plan, current))
        return self.time_of(ids) / self.time_of(before)

    def search(self, losses: Mapping[str, float]) -> StubWorkshop:
        return ScriptedWorkshop({}, script=self, losses=losses)


@dataclass
class ScriptedWorkshop(StubWorkshop):
    script: Script | None = None
    losses: Mapping[str, float] = field(default_factory=dict)

    def make(self, plan: Plan) -> Variant:
        return Variant("onnxruntime", "model.onnx", plan.options)

    def search(self, what, current, candidates):
        assert self.script is not None
        self.trials = {
            name: trial(self.script.ratio(plan, current), self.lost(plan), half=self.script.half)
            for name, plan in candidates.items()
        }
        return super().search(what, current, candidates)

    def lost(self, plan: Plan) -> float:
        return max((self.losses.get(name, 0.0) for name in plan.remedies), default=0.0)


def product(factors: Mapping[str, float]) -> Times:
    return lambda ids: float(np.prod([factors.get(name, 1.0) for name in ids]))


def search(
    monkeypatch,
    needs: dict[str, tuple[str, ...]],
    time_of: Times,
    losses: Mapping[str, float] | None = None,
    *,
    unfused: bool = False,
):
    script = Script({name: frozenset(what) for name, what in needs.items()}, time_of)
    monkeypatch.setattr(fusing, "glance", script.glance)
    workshop = script.search(losses or {})
    plan, decision = Fusing(workshop, script, CURRENT, Goal()).search(needs, unfused=unfused)  # type: ignore[arg-type]  # stubs
    return plan, decision, script, workshop


def test_what_pays_goes_together_and_the_rest_says_why_not(monkeypatch):
    needs = dict.fromkeys(("fuse_attention", "fuse_gelu", "fuse_skip_layer_norm"), ())
    times = product({"fuse_attention": 0.8, "fuse_gelu": 0.95, "fuse_skip_layer_norm": 1.2})
    plan, decision, script, workshop = search(monkeypatch, needs, times)
    assert plan.remedies == ("fuse_attention", "fuse_gelu")
    assert [kept.remedy for kept in decision.kept] == ["fuse_attention", "fuse_gelu"]
    assert "-24.0 % time" in decision.kept[0].reason
    assert "-20.0 % time (-20.3 to -19.7) alone" in decision.kept[0].reason
    (rejected,) = decision.rejected
    assert rejected == Rejected(
        "fuse_skip_layer_norm",
        "in a quick look +20.0 % time (+19.7 to +20.3); nothing more beside fuse_attention, fuse_gelu",
    )
    assert [len(names) for _what, names in script.looks] == [3, 1]
    assert [len(candidates) for _what, _current, candidates in workshop.searches] == [3]


def test_what_gains_only_beside_others_is_found(monkeypatch):
    """The runtime's own slow fusion hides what the others gain, until it is switched off."""

    def time_of(ids: frozenset[str]) -> float:
        rest = product({"fuse_heads": 1.01, "fuse_gelu": 0.97})(ids)
        return rest * (0.7 if {OFF_OPTION, "fuse_heads"} <= ids else 1.0)

    needs = dict.fromkeys(("fuse_heads", "fuse_gelu"), ())
    plan, decision, _, _ = search(monkeypatch, needs, time_of, unfused=True)
    assert set(plan.remedies) == {"fuse_heads", "fuse_gelu"}
    assert plan.options == {"disable": "SkipLayerNormFusion"}
    assert {kept.remedy for kept in decision.kept} == {"fuse_heads", "fuse_gelu", OFF_OPTION}
    assert without(plan, "graph", OFF_OPTION).options == {}, "what it is worth can be measured"


def test_the_runtimes_own_fusion_is_not_switched_off_beside_the_files(monkeypatch):
    times = product({"fuse_skip_layer_norm": 0.97, OFF_OPTION: 0.9, "fuse_gelu": 0.9})
    needs = dict.fromkeys(("fuse_skip_layer_norm", "fuse_gelu"), ())
    plan, _, script, _ = search(monkeypatch, needs, times, unfused=True)
    assert plan == CURRENT.with_remedies("fuse_gelu").with_options({"disable": "SkipLayerNormFusion"})
    assert not any(
        {"fuse_skip_layer_norm", OFF_OPTION} <= set(n.split(" + ")) for _, names in script.looks for n in names
    )


def test_passes_that_are_off_already_stay_off(monkeypatch):
    start = CURRENT.with_options({"disable": "BiasGeluFusion"})
    script = Script(
        {"fuse_gelu": frozenset()}, product({"fuse_gelu": 0.9, "disable=BiasGeluFusion+SkipLayerNormFusion": 0.8})
    )
    monkeypatch.setattr(fusing, "glance", script.glance)
    plan, _ = Fusing(script.search({}), script, start, Goal()).search({"fuse_gelu": ()}, unfused=True)  # type: ignore[arg-type]  # stubs
    assert plan.options == {"disable": "BiasGeluFusion+SkipLayerNormFusion"}
    assert plan.remedies == ("fuse_gelu",)


def test_what_is_in_the_way_beside_others_is_left_out(monkeypatch):
    def time_of(ids: frozenset[str]) -> float:
        both = {"fuse_attention", "fuse_embedding_norm"} <= ids
        return product({"fuse_attention": 0.8, "fuse_embedding_norm": 0.98, "fuse_gelu": 0.97})(ids) * (
            1.1 if both else 1
        )

    needs = dict.fromkeys(("fuse_attention", "fuse_embedding_norm", "fuse_gelu"), ())
    plan, decision, _, _ = search(monkeypatch, needs, time_of)
    assert set(plan.remedies) == {"fuse_attention", "fuse_gelu"}
    assert [rejected.remedy for rejected in decision.rejected] == ["fuse_embedding_norm"]


def test_two_that_are_not_missed_are_left_out_together(monkeypatch):
    needs = dict.fromkeys(("fuse_attention", "fuse_embedding_norm", "fuse_gelu", "pack_projections"), ())
    times = product({"fuse_attention": 0.8, "fuse_embedding_norm": 1.004, "fuse_gelu": 1.003, "pack_projections": 1.0})
    plan, _, _, workshop = search(monkeypatch, needs, times)
    assert plan.remedies[0] == "fuse_attention"
    assert "fuse_attention" in workshop.searches[0][2], "alone, as none of the others is missed"


def test_of_two_that_are_as_fast_the_one_with_fewer_fusions_goes_out(monkeypatch):
    needs = dict.fromkeys(("fuse_attention", "fuse_gelu"), ())
    plan, decision, _, _ = search(monkeypatch, needs, product({"fuse_attention": 0.8, "fuse_gelu": 0.999}))
    assert plan.remedies == ("fuse_attention",)
    assert decision.rejected[0].reason.endswith("nothing more beside fuse_attention")


@pytest.mark.parametrize("rivals", RIVALS)
def test_one_of_several_rivals_goes_into_a_plan(monkeypatch, rivals):
    times = product({name: 0.9 - 0.01 * place for place, name in enumerate(rivals)} | {"fuse_layer_norm": 0.9})
    needs = dict.fromkeys((*rivals, "fuse_layer_norm"), ())
    plan, _, script, workshop = search(monkeypatch, needs, times)
    assert set(plan.remedies) == {rivals[-1], "fuse_layer_norm"}
    tried = [set(p.remedies) for _, _, candidates in workshop.searches for p in candidates.values()]
    assert all(len(set(rivals) & ids) <= 1 for ids in tried)
    assert all(len(set(rivals) & set(name.split(" + "))) <= 1 for _, names in script.looks for name in names)


def test_a_fusion_brings_what_it_needs(monkeypatch):
    needs = {"fuse_layer_norm": (), "fuse_embedding_norm": ("fuse_layer_norm",)}
    times = product({"fuse_layer_norm": 1.02, "fuse_embedding_norm": 0.7})
    plan, decision, script, _ = search(monkeypatch, needs, times)
    assert plan.remedies == ("fuse_layer_norm", "fuse_embedding_norm")
    assert script.looks[0][1] == ("fuse_layer_norm", "fuse_layer_norm + fuse_embedding_norm")
    assert [kept.remedy for kept in decision.kept] == ["fuse_layer_norm", "fuse_embedding_norm"]


def test_where_nothing_can_gain_nothing_is_searched(monkeypatch):
    needs = dict.fromkeys(("fuse_attention", "fuse_gelu"), ())
    plan, decision, _, workshop = search(monkeypatch, needs, product({"fuse_attention": 1.1, "fuse_gelu": 1.0}))
    assert plan == CURRENT
    assert not decision.kept
    assert not workshop.searches
    assert {rejected.remedy for rejected in decision.rejected} == set(needs)


def test_where_one_costs_too_much_accuracy_the_others_still_go_in(monkeypatch):
    needs = dict.fromkeys(("fuse_attention", "approximate_gelu", "fuse_layer_norm"), ())
    times = product({"fuse_attention": 0.8, "approximate_gelu": 0.5, "fuse_layer_norm": 0.9})
    losses = {"approximate_gelu": 2.0}
    plan, decision, _, _ = search(monkeypatch, needs, times, losses)
    assert set(plan.remedies) <= {"fuse_attention", "fuse_layer_norm"}
    assert plan.remedies
    assert any(rejected.remedy == "approximate_gelu" for rejected in decision.rejected)


def test_what_was_measured_and_not_kept_is_deleted(monkeypatch):
    needs = dict.fromkeys(("fuse_attention", "fuse_gelu"), ())
    plan, _, _, workshop = search(monkeypatch, needs, product({"fuse_attention": 0.8, "fuse_gelu": 1.1}))
    assert plan not in workshop.discarded
    assert CURRENT.with_remedies("fuse_gelu") in workshop.discarded


def test_every_remedy_that_edits_a_graph_is_a_candidate():
    known = remedies_of(*EDITING)
    left_out = {name for name, remedy in known.items() if name not in editing()}
    assert all(known[name].fixes_shape or known[name].step == Step.SESSION for name in left_out)
    assert {"restore_scale", "inline_branches", "unroll_loops", "remove_casts", "remove_quantize_pairs"} <= set(
        editing()
    )


MESS = """g (float[2, 3, 80] x) => (float[2, 3, 80] y)
        <bool yes = {1}, int64 trips = {3}, float one = {1}, float half = {0.5},
        float root = {1.4142135}, int64[1] last = {-1}, float eps = {1e-5}, float s = {0.05}, uint8 z = {128}> {
    a = If (yes) <then_branch = t () => (float[2, 3, 80] out) { out = Neg(x) },
                  else_branch = e () => (float[2, 3, 80] out) { out = Abs(x) }>
    n = Loop (trips, yes, a)
        <body = b (int64 i, bool before, float[2, 3, 80] state) => (bool after, float[2, 3, 80] next)
        { after = Identity(before) next = Add(state, half) }>
    turned = Transpose <perm = [2, 0, 1]> (n) back = Transpose <perm = [1, 2, 0]> (turned)
    wide = Cast <to = 11> (back) narrow = Cast <to = 1> (wide)
    q = QuantizeLinear(narrow, s, z) d = DequantizeLinear(q, s, z)
    r = Div(d, root) f = Erf(r) g1 = Add(f, one) h = Mul(d, g1) gelu = Mul(h, half)
    mean = ReduceMean(gelu, last) c = Sub(gelu, mean) cc = Mul(c, c) var = ReduceMean(cc, last) e = Add(var, eps)
    sd = Sqrt(e) norm = Div(c, sd) scaled = Mul(norm, gamma) y = Add(scaled, beta) }"""


def test_remedies_work_together(tmp_path):
    """Branch, loop, transposes, casts and codes around nothing stand in the way of nothing."""
    rows = {name: np.linspace(0.5, 1.5, 80, dtype=np.float32) for name in ("gamma", "beta")}
    messy = parsed(MESS, **rows)
    onnx.save(messy, tmp_path / "messy.onnx")
    side = Variant("onnxruntime", str(tmp_path / "messy.onnx"))
    observed = Observed(undone=("narrow",))
    plan = Plan(remedies=tuple(editing()))
    made = onnx.load(build(plan, Case(standard=side, variant=side), tmp_path / "clean.onnx", observed=observed).path)
    assert kinds(made) == {"Neg": 1, "Add": 3, "Gelu": 1, "LayerNormalization": 1}
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 80)).astype(np.float32)}
    assert relative_error(outputs(made, feed), outputs(messy, feed)) < 0.05, "codes rounded there"


@pytest.fixture
def files(tmp_path):
    standard, variant = tmp_path / "standard.onnx", tmp_path / "variant.onnx"
    onnx.save(tiny_bert(), standard)
    onnx.save(flash(drop_scale=True, segmented_qkv=True, int8_weights=True), variant)
    return Case(
        standard=Variant("onnxruntime", str(standard)),
        variant=Variant("onnxruntime", str(variant), OFF),
        shapes=(Shape(1, 8),),
        rounds=1,
        max_rounds=1,
        threads=1,
    )


def test_a_rehearsal_tells_what_changes_without_changing_anything(files):
    rehearsal = Rehearsal(CURRENT, files)
    counts = rehearsal.counts(("restore_scale", "fuse_attention", "fuse_layer_norm"))
    assert counts == {"restore_scale": 2, "fuse_attention": 2, "fuse_layer_norm": 0}
    assert rehearsal.counts(("restore_scale",)) == {"restore_scale": 2}, "what was rehearsed before is not there"
    assert rehearsal.changes((), "pack_projections")
    assert not rehearsal.changes(("fuse_attention",), "pack_projections"), "there are no projections left"


def test_remedies_of_quantization_only_change_what_stays_quantized(files):
    widening = [name for name, remedy in editing().items() if name in remedies_of("quantization")]
    as_it_is, floats = Rehearsal(Plan(), files), Rehearsal(CURRENT, files)
    assert any(as_it_is.changes((), name) for name in widening)
    assert not any(floats.changes((), name) for name in widening)


def test_a_plan_takes_a_remedy_of_quantization(files, tmp_path):
    variant = build(Plan(remedies=("fold_dequantize",)), files, tmp_path / "folded.onnx", current=Plan())
    before, after = (kinds(onnx.load(path))["DequantizeLinear"] for path in (files.variant.path, variant.path))
    assert after < before


@pytest.fixture
def workshop(files, tmp_path, monkeypatch):
    hurry(monkeypatch)
    quiet(monkeypatch)
    bench = open_bench(files, files.shapes[0])
    folder = tmp_path / "plans"
    folder.mkdir()
    return Workshop(bench, measuring.compare_at(bench), folder)


def test_a_quick_look_times_models_and_says_which_fail(workshop):
    plans = {"fused": CURRENT.with_remedies("fuse_attention"), "odd": CURRENT.with_remedies("no such remedy")}
    seen = glance(workshop, "graph", CURRENT, plans)
    assert set(seen.ratios) == {"fused"}
    assert isinstance(seen.ratios["fused"], Interval)
    assert [rejected.remedy for rejected in seen.failed] == ["odd"]


def test_the_whole_stage_on_a_small_model(workshop, monkeypatch):
    """Times are noise here; but every candidate has its answer, and what goes out computes the same."""
    few = ("remove_copies", "restore_scale", "fuse_attention", "fuse_heads", "fuse_layer_norm", "pack_projections")
    monkeypatch.setattr(graph, "editing", lambda: {name: remedies_of("graph")[name] for name in few})
    plan, decision = restructure_graph(workshop, CURRENT, Goal())
    told = [*(kept.remedy for kept in decision.kept), *(rejected.remedy for rejected in decision.rejected)]
    assert {*few, OFF_OPTION} == set(told), "every candidate is accounted for"
    assert set(plan.remedies) == {kept.remedy for kept in decision.kept} - {OFF_OPTION}
    made, before = (onnx.load(workshop.make(p).path) for p in (plan, CURRENT))
    if "restore_scale" not in plan.remedies:
        assert relative_error(outputs(made, tiny_feed()), outputs(before, tiny_feed())) < 1e-3
