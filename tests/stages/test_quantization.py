"""Stage 1: what single layers take and lose says what to try; whole models say what to keep."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stages.stub_workshop import StubWorkshop, pm, trial
from unlag.stages.fixed import Rejected
from unlag.stages.goal import Goal
from unlag.stages.layer_facts import LayerFacts
from unlag.stages.layers import Layer
from unlag.stages.plan import Plan
from unlag.stages.quantization import BY_LAYER, retune_quantization, tune_quantization

NAMES = ("first", "second", "third", "fourth")
LAYERS = tuple(Layer(name, "product", (64, 64), (name,)) for name in NAMES)


def each(*numbers: float) -> dict[str, float]:
    held = numbers if len(numbers) > 1 else numbers * len(NAMES)
    return dict(zip(NAMES, held, strict=True))


def facts(times: dict[str, dict[str, float]], failed: tuple[Rejected, ...] = ()) -> LayerFacts:
    return LayerFacts(LAYERS, dict.fromkeys(NAMES, "8x64·64x64"), times, failed)  # type: ignore[arg-type]


PAYING = facts(
    {
        "float32": each(4.0), "weight_int8": each(4.0), "dynamic_int8": each(1.0), "dynamic_int8_tensor": each(1.0),
        "static_int8": each(1.1), "blocks_int8": each(4.4), "blocks_int4": each(5.0),
    }
)  # fmt: skip
ERRORS = {
    "weight_int8": each(0.005), "dynamic_int8": each(0.01), "dynamic_int8_tensor": each(0.03),
    "dynamic_int8_7bit": each(0.012), "static_int8": each(0.011), "static_int8_percentile": each(0.3),
    "static_int8_entropy": each(0.011), "static_int8_7bit": each(0.013), "blocks_int4": each(0.06),
}  # fmt: skip


class StubLayers:
    """Hands out scripted facts, and keeps what it was asked."""

    def __init__(self, known: LayerFacts, errors=ERRORS, gains=None, *, in_integers: bool = False) -> None:
        self.variant_in_integers = in_integers
        self.known, self.scripted, self.scripted_gains = known, errors, gains or {}
        self.asked: list[str] = []
        self.gains_asked = 0

    def __call__(self, _workshop: object, plan: Plan) -> StubLayers:
        self.plan = plan
        return self

    def times(self) -> LayerFacts:
        return self.known

    def errors(self, known: LayerFacts, schemes) -> LayerFacts:
        self.asked += schemes
        more = {name: self.scripted[name] for name in schemes if name in self.scripted}
        return LayerFacts(known.layers, known.places, known.times_ms, known.failed, {**known.errors, **more})

    def gains(self) -> dict[str, float]:
        self.gains_asked += 1
        return self.scripted_gains

    def in_integers(self) -> bool:
        return self.variant_in_integers


def workshop(trials, **facts_of_round) -> StubWorkshop:
    host = SimpleNamespace(has_float16_arithmetic=False)
    return StubWorkshop(trials, bench=SimpleNamespace(threads=2, host=host), **facts_of_round)


def tune(shop: StubWorkshop, current: Plan = Plan(), look=None, ask=tune_quantization, **goal):  # noqa: B008 - frozen
    plan, decision = ask(shop, current, Goal(**{"budget": 0.5, **goal}), look or StubLayers(PAYING))
    return plan, decision, {r.remedy: r.reason for r in decision.rejected}


def kept(decision) -> list[str]:
    return [part.remedy for part in decision.kept]


def test_whole_models_are_tried_of_what_layers_promise():
    shop, look = workshop({}), StubLayers(PAYING)
    start = Plan(remedies=("x",))
    plan, decision, rejected = tune(shop, start, look)
    ((_, current, tried),) = shop.searches
    assert current is look.plan is start
    assert list(tried) == ["float32", "dynamic_int8", "static_int8"]
    assert all(candidate.precision == name and candidate.remedies == ("x",) for name, candidate in tried.items())
    assert (plan, kept(decision)) == (start, [])
    assert rejected["blocks_int4"] == "by single layers: 1.25× the time of float kernels (20 against 16 ms)"
    assert rejected["dynamic_int8_tensor"].endswith("(4 against 16 ms), 3.00% of each result lost")
    reason = rejected["static_int8_7bit, static_int8_percentile, static_int8_entropy"]
    assert reason.startswith(
        "by single layers: the kernel of static_int8, with 1.30%, 30.00%, 1.10% of each result lost"
    )
    assert "blocks_int4" not in look.asked, "no error is measured of what is too slow anyway"


def test_the_fastest_affordable_scheme_is_kept_with_its_layers():
    trials = {"float32": trial(0.5), "dynamic_int8": trial(0.3, loss=0.4), "static_int8": trial(0.25, loss=2.0)}
    plan, decision, rejected = tune(workshop(trials, failed=(Rejected("dynamic_uint8", "no such kernel"),)))
    assert (plan.precision, plan.layers) == ("dynamic_int8", {})
    (part,) = decision.kept
    assert part.remedy == "dynamic_int8"
    assert part.reason.startswith("4 of 4 layers dynamic int8 by column: -70.0 % time")
    assert "2.00 points below the standard, more than the budget allows" in rejected["static_int8"]
    assert rejected["float32"].endswith("dynamic_int8 is faster, or as fast and more accurate or smaller")
    assert rejected["dynamic_uint8"] == "no such kernel"
    assert decision.notes == ()


def test_codes_that_saturate_give_way_to_seven_bits():
    """Without an int8 dot product 8-bit codes overflow 16-bit sums; the kernel is the same, so the error shows it."""
    errors = {**ERRORS, "dynamic_int8": each(0.2), "dynamic_int8_tensor": each(0.2)}
    shop = workshop({})
    tune(shop, look=StubLayers(PAYING, errors))
    assert "dynamic_int8_7bit" in shop.searches[0][2]
    assert "dynamic_int8" not in shop.searches[0][2]


def test_a_variant_that_is_fast_already_stays_as_it_is():
    trials = {"float32": trial(1.6), "dynamic_int8": trial(1.0), "static_int8": trial(1.05)}
    plan, decision, rejected = tune(workshop(trials))
    assert plan.precision == "as_is"
    assert not kept(decision)
    assert rejected["float32"].startswith("no measured gain: +60.0 % time")


def test_a_loss_of_another_kind_is_not_held_against_a_scheme():
    """The variant lacks its attention scale: everything is 4.6 points down until the graph stage mends it."""
    trials = {
        "float32": trial(0.5, loss=4.6),
        "dynamic_int8": trial(0.3, loss=5.3, loss_half=0.8),
        "static_int8": trial(0.2, loss=7.0, loss_half=0.8),
    }
    plan, decision, rejected = tune(workshop(trials, current_loss=4.6))
    assert plan.precision == "dynamic_int8", "it may be 0.1 points worse than float32, or better: not more can be told"
    assert kept(decision) == ["dynamic_int8"]
    assert "more than the budget allows" in rejected["static_int8"], "this one is worse for sure"


def test_on_a_broken_graph_a_tie_goes_to_the_layers_that_lose_least():
    """Its points are luck: by them the coarser codes would be better."""
    known = facts({**PAYING.times_ms, "dynamic_int8_tensor": each(0.8)})
    trials = {
        "float32": trial(0.5, loss=4.6),
        "dynamic_int8": trial(0.30, loss=4.9, loss_half=0.8),
        "dynamic_int8_tensor": trial(0.295, loss=4.5, loss_half=0.8),
    }
    errors = {**ERRORS, "dynamic_int8_tensor": each(0.015)}
    shop = workshop(trials, current_loss=4.6)
    plan, _, _ = tune(shop, look=StubLayers(known, errors))
    assert "dynamic_int8_tensor" in shop.searches[0][2]
    assert plan.precision == "dynamic_int8"
    fine = workshop({name: trial(t.ratio.estimate, loss=0.1) for name, t in trials.items()})
    assert tune(fine, look=StubLayers(known, errors))[0].precision == "dynamic_int8_tensor", "the fastest otherwise"


def test_a_scheme_that_mends_the_loss_is_the_measure_for_the_others():
    """The variant's int8 weights are coarse: float32 is right again, so int8 may lose the budget from there only."""
    trials = {"float32": trial(0.9, loss=0.0, change=3.0), "dynamic_int8": trial(0.95, loss=2.0, change=1.0)}
    plan, _, rejected = tune(workshop(trials, current_loss=3.0))
    assert plan.precision == "float32"
    assert "more than the budget allows" in rejected["dynamic_int8"]


def test_strictness_counts_the_far_end_of_a_loss():
    trials = {"float32": trial(0.8), "dynamic_int8": trial(0.5, loss=0.4, loss_half=0.3)}
    assert tune(workshop(trials))[0].precision == "dynamic_int8"
    plan, _, rejected = tune(workshop(trials), strict=True)
    assert plan.precision == "float32"
    assert "0.40 (up to 0.70) points below the standard" in rejected["dynamic_int8"]


def test_what_loses_too_much_is_backed_off_by_its_most_harmful_layers():
    """Static loses four times the budget: layers go back to float until the harm fits, the worst ones first."""
    look = StubLayers(PAYING, gains=each(9.0, 1.0, 1.0, 1.0))
    shop = workshop(
        {
            "float32": trial(1.0),
            "dynamic_int8": trial(0.5, loss=1.5),
            "static_int8": trial(0.3, loss=2.0),
            "static_int8, 1 weights more careful": trial(0.4, loss=0.3),
        }
    )
    plan, decision, rejected = tune(shop, look=look)
    assert look.gains_asked == 1
    again = shop.searches[1]
    assert again[0] == "quantization, backing off"
    assert all(candidate.precision == "static_int8" for candidate in again[2].values())
    assert (plan.precision, plan.layers) == ("static_int8", {"first": "weight_int8"})
    reason = decision.kept[0].reason
    assert reason.startswith("3 of 4 layers static int8 by column, 1 int8 on disk, float32 from loading on: -60.0 %")
    assert "static_int8" in rejected
    assert "dynamic_int8" in rejected


def test_nothing_is_backed_off_for_less_than_there_is():
    trials = {"float32": trial(1.0), "dynamic_int8": trial(0.4), "static_int8": trial(0.5, loss=2.0)}
    look = StubLayers(PAYING)
    shop = workshop(trials)
    tune(shop, look=look)
    assert len(shop.searches) == 1
    assert not look.gains_asked


def test_layers_get_their_own_schemes_where_that_gains():
    """One layer is faster in static scales, one in floats."""
    times = {
        "float32": each(4.0, 4.0, 4.0, 0.2), "weight_int8": each(4.0, 4.0, 4.0, 0.2),
        "dynamic_int8": each(1.0, 1.0, 1.0, 0.8), "static_int8": each(0.5, 1.2, 1.2, 1.0),
    }  # fmt: skip
    shop = workshop({BY_LAYER: trial(0.4), "dynamic_int8": trial(0.5)})
    plan, decision, _ = tune(shop, look=StubLayers(facts(times)))
    assert (plan.precision, plan.layers) == ("dynamic_int8", {"first": "static_int8", "fourth": "weight_int8"})
    assert decision.kept[0].reason.startswith(
        "2 of 4 layers dynamic int8 by column, 1 static int8 by column, 1 int8 on"
    )


def test_integers_that_do_not_pay_are_not_tried_and_the_note_says_why():
    times = {"float32": each(1.0), "dynamic_int8": each(1.5), "static_int8": each(1.2, 1.2, 1.2, 2.0)}
    shop, look = workshop({"float32": trial(1.0)}), StubLayers(facts(times))
    plan, decision, rejected = tune(shop, look=look)
    assert plan.precision == "as_is"
    assert list(shop.searches[0][2]) == ["float32"]
    assert not look.asked
    (note,) = decision.notes
    assert note.startswith("integer arithmetic does not pay on this machine: the fastest integer kernels here (static")
    assert "1.40× the time of the float matrix products (5.6 against 4 ms); at 8x64·64x64 it is 2 against 1 ms" in note
    assert "1.50× the time of float kernels" in rejected["dynamic_int8"]


def test_whole_models_that_do_not_keep_the_layers_promise_are_in_the_note():
    trials = {"float32": trial(0.9), "dynamic_int8": trial(1.05), "static_int8": trial(1.1)}
    plan, decision, _ = tune(workshop(trials))
    assert plan.precision == "float32"
    assert "0.25× the time of the float matrix products" in decision.notes[0]
    assert "the best whole model with it takes +5.0 % time" in decision.notes[0]


def test_a_model_without_layers_is_left_in_peace():
    plan, decision, _ = tune(workshop({"float32": trial(1.0)}), look=StubLayers(LayerFacts((), {}, {})))
    assert (plan, kept(decision), decision.notes) == (Plan(), [], ())


def test_without_labels_outputs_stay_near_float32s():
    trials = {
        "float32": trial(0.9, loss=None, cosine=0.97),
        "dynamic_int8": trial(0.5, loss=None, cosine=0.965),
        "static_int8": trial(0.6, loss=None, cosine=0.9),
    }
    plan, _, rejected = tune(workshop(trials, current_loss=None, current_cosine=0.97, best_cosine=0.97))
    assert plan.precision == "dynamic_int8"
    assert "cosine 0.900" in rejected["static_int8"]


@pytest.mark.parametrize("sizes", [(100, 200), (200, 100)])
def test_a_tie_goes_to_the_smaller_model(sizes):
    trials = {
        name: trial(0.5, size_bytes=size) for name, size in zip(("dynamic_int8", "static_int8"), sizes, strict=True)
    }
    plan, _, _ = tune(workshop(trials))
    assert plan.precision == ("dynamic_int8" if sizes[0] < sizes[1] else "static_int8")


def test_a_variant_within_the_budget_is_never_made_slower():
    """Design, section 8: never slower than what went in."""
    trials = {"float32": trial(2.0, loss=0.0, change=0.3)}
    plan, _, _ = tune(workshop(trials, current_loss=0.3))
    assert plan.precision == "as_is"


def test_size_counts_where_it_is_the_objective_and_costs_no_time():
    trials = {
        "float32": trial(1.0, size_bytes=100),
        "weight_int8": trial(1.0, size_bytes=30),
        "dynamic_int8": trial(0.5, size_bytes=30),
        "blocks_int4": trial(1.3, size_bytes=20),
    }
    shop = workshop(trials)
    plan, _, _ = tune(shop, objective="size")
    assert list(shop.searches[0][2])[:3] == ["float32", "blocks_int4", "weight_int8"]
    assert plan.precision == "dynamic_int8", "as small as weight_int8, as accurate, and faster"
    assert tune(workshop(trials))[0].precision == "dynamic_int8"
    unsure = {"float32": trial(1.0), "blocks_int4": trial(1.07, half=0.15, size_bytes=20)}
    assert tune(workshop(unsure), objective="size")[0].precision == "as_is", "it may be equally fast; it looks slower"


def test_float16_is_tried_where_the_cpu_computes_in_it():
    shop = workshop({})
    assert tune(shop)[2]["float16"] == "not tried without float16 arithmetic: this CPU has none"
    shop = workshop({})
    shop.bench.host.has_float16_arithmetic = True
    tune(shop)
    assert "float16" in shop.searches[0][2]


def test_what_is_given_up_is_deleted_and_the_choice_is_not():
    shop = workshop({"float32": trial(0.5), "dynamic_int8": trial(0.3)})
    plan, _, _ = tune(shop)
    assert plan not in shop.discarded
    assert {p.precision for p in shop.discarded} == {"float32"}


def test_a_finished_graph_is_asked_again_beside_its_own_choice():
    current = Plan("dynamic_int8", ("fuse_attention",))
    shop = workshop({"static_int8": trial(0.9)})
    plan, decision, _ = tune(shop, current, ask=retune_quantization)
    ((_, beside, tried),) = shop.searches
    assert beside is current
    assert "dynamic_int8" not in tried, "that is the current plan"
    assert (plan.precision, plan.remedies) == ("static_int8", ("fuse_attention",))
    assert kept(decision) == ["static_int8"]
    assert not decision.rejected, "what single layers said of the others stands in the first decision"


def test_a_choice_that_loses_too_much_on_the_finished_graph_is_backed_off():
    """On the broken graph nobody could tell."""
    current = Plan("dynamic_int8", ("restore_scale",))
    trials = {"float32": trial(2.0, loss=0.0, change=0.9), "dynamic_int8, 1 weights more careful": trial(1.1, loss=0.2)}
    look = StubLayers(PAYING, gains=each(9.0, 1.0, 1.0, 1.0))
    shop = workshop(trials, current_loss=0.9)
    plan, decision, _ = tune(shop, current, look, retune_quantization)
    assert (plan.precision, plan.layers) == ("dynamic_int8", {"first": "weight_int8"})
    assert plan.remedies == ("restore_scale",)
    assert kept(decision) == ["dynamic_int8, 1 weights more careful"]


def test_a_choice_within_the_budget_is_not_backed_off():
    look = StubLayers(PAYING)
    shop = workshop({"float32": trial(2.0)}, current_loss=0.3)
    plan, decision, _ = tune(shop, Plan("dynamic_int8"), look, retune_quantization)
    assert (plan.precision, kept(decision), decision.notes) == ("dynamic_int8", [], ())
    assert not look.gains_asked


def test_a_variant_that_computes_in_integers_is_not_said_to_use_none():
    look = StubLayers(PAYING, in_integers=True)
    plan, decision, _ = tune(workshop({"float32": trial(1.5)}), look=look)
    assert (plan.precision, decision.notes) == ("as_is", ())


def test_a_finished_graph_keeps_its_choice_where_nothing_is_better():
    current = Plan("dynamic_int8", ("fuse_attention",))
    plan, decision, _ = tune(workshop({"static_int8": trial(1.0)}), current, ask=retune_quantization)
    assert (plan, kept(decision)) == (current, [])


def test_every_search_asks_the_same_in_a_second_run():
    def asked():
        shop = workshop(
            {"float32": trial(1.0), "static_int8": trial(0.3, loss=2.0), "dynamic_int8": trial(0.5, loss=2.0)}
        )
        tune(shop, look=StubLayers(PAYING, gains=each(1.0, 2.0, 3.0, 4.0)))
        return shop.searches

    assert asked() == asked()
    assert pm(1.0) == pm(1.0)
