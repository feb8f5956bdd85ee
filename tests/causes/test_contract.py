"""What every cause's file must hold."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from unlag.causes.contract import Cause, find_causes

CAUSES = find_causes()
HEADINGS = ("What it is:", "Why it costs:", "How it is seen:", "Remedy:", "Safety:", "Source:")
ZOO = Path(__file__).parents[1] / "zoo"


def documentation(cause: Cause) -> str:
    return importlib.import_module(f"unlag.causes.{cause.id}").__doc__ or ""


def test_there_are_causes_and_their_ids_differ():
    assert len({cause.id for cause in CAUSES}) == len(CAUSES) > 0


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_id_is_the_file_name(cause):
    assert importlib.import_module(f"unlag.causes.{cause.id}").CAUSE is cause


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_documentation_has_all_headings_in_order(cause):
    places = [documentation(cause).find(heading) for heading in HEADINGS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_source_names_a_report_or_a_measurement(cause):
    source = documentation(cause).split("Source:")[1]
    assert any(mark in source for mark in "#!"), source


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_id_names_a_failing_state(cause):
    assert not cause.id.startswith(("no_", "fix_", "not_"))
    assert cause.affects


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_title_fits_a_table(cause):
    assert 10 < len(cause.title) <= 50
    assert not cause.title.endswith(".")


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_has_a_plant_and_a_twin(cause):
    assert (ZOO / f"{cause.id}.py").is_file()
    zoo = importlib.import_module(f"zoo.{cause.id}")
    assert callable(zoo.plant)
    assert callable(zoo.twin)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_remedies_are_named(cause):
    assert cause.remedies
    for remedy in cause.remedies:
        assert remedy.id.isidentifier()
        assert remedy.title[0].islower()
