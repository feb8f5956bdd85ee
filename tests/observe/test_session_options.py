"""Which options belong together, and taking over the standard's."""

from __future__ import annotations

import pytest

from planting import editable, tiny_bert
from unlag.model.draft import OnnxDraft
from unlag.model.variant import Variant
from unlag.observe.session_options import MEMORY, PASSES, SPINNING, THREADS, adopt, differing, passes_off, remaining


def draft(ours: dict[str, str], theirs: dict[str, str]) -> OnnxDraft:
    model = editable(tiny_bert())
    return OnnxDraft(Variant("onnxruntime", "model.onnx", ours), model, model, dict(ours), theirs)


def test_families_do_not_overlap():
    families = [THREADS, SPINNING, MEMORY, PASSES]
    assert len(frozenset().union(*families)) == sum(map(len, families))


def test_what_remains_is_in_no_family():
    ours = {"threads": "1", "optimization": "off", "provider": "cuda", "config.some.key": "1"}
    assert remaining(ours, {"arena": "off", "config.other.key": "2"}) == {"config.some.key", "config.other.key"}


def test_an_absent_option_differs_from_one_that_is_set():
    assert differing({"arena": "off"}, {}, MEMORY) == ["arena"]
    assert differing({"arena": "off"}, {"arena": "off"}, MEMORY) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted", "count"),
    [
        ({"threads": "1"}, {}, {}, 1),
        ({}, {"threads": "2"}, {"threads": "2"}, 1),
        ({"threads": "1", "arena": "off"}, {"threads": "2", "spinning": "off"}, {"threads": "2", "arena": "off"}, 1),
        ({"threads": "2"}, {"threads": "2"}, {"threads": "2"}, 0),
    ],
)
def test_adopting_takes_these_options_and_no_other(ours, theirs, wanted, count):
    changed = draft(ours, theirs)
    assert adopt(changed, THREADS) == count
    assert changed.options == wanted
    assert adopt(changed, THREADS) == 0


def test_passes_off_are_the_names_between_plus_signs():
    assert passes_off({"disable": "A+B"}) == {"A", "B"}
    assert passes_off({}) == frozenset()
