from __future__ import annotations

from functools import partial

from calibrating import judged, values_of
from rewriting import assert_untouched, kinds, outputs, relative_error, rewritten
from unlag.model.draft import Observed
from unlag.observe.judged import seen_of
from unlag.rewrites.float_activations import float_activations
from zoo.rounded_activations import FEED, plant, twin


def test_the_coarse_activation_becomes_float_and_the_others_stay():
    pair = plant()
    after, changed = rewritten(pair.variant, partial(float_activations, seen=seen_of(values_of(pair.variant, FEED))))
    assert changed == 1
    before, now = kinds(pair.variant), kinds(after)
    assert (before["QuantizeLinear"], now["QuantizeLinear"]) == (3, 2)
    assert before["DequantizeLinear"] - now["DequantizeLinear"] == 1
    theirs = outputs(pair.standard, FEED)
    assert relative_error(outputs(after, FEED), theirs) < relative_error(outputs(pair.variant, FEED), theirs) / 2
    assert not [judgement for judgement in judged(after, FEED) if judgement.fault]


def test_activations_with_enough_codes_stay():
    model = twin().variant
    assert_untouched(model, partial(float_activations, seen=seen_of(values_of(model, FEED))))


def test_nothing_is_done_where_nothing_was_seen():
    assert_untouched(plant().variant, partial(float_activations, seen=Observed()))
