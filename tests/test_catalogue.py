import os
from pathlib import Path

from unlag.causes.contract import find_causes
from unlag.report.catalogue import render_catalogue

PAGE = Path(__file__).parents[1] / "docs" / "causes.md"


def test_the_catalogue_in_docs_is_current():
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(render_catalogue(), "utf-8")
    assert PAGE.read_text("utf-8") == render_catalogue()


def test_every_cause_has_its_heading():
    page = render_catalogue()
    assert [cause.id for cause in find_causes() if f"\n## {cause.id}\n" not in page] == []
