"""A record as one HTML file: the page's words and tables, and pictures; no script, nothing from the network."""

from __future__ import annotations

import functools

import jinja2
from markupsafe import Markup

from unlag.measure.comparison import Comparison
from unlag.proof.explanation import Explanation
from unlag.report import pictures
from unlag.report.document import Command, Line, Picture, Table, clean
from unlag.report.pages import page_of
from unlag.report.record import Record


def render(record: Record, *, beside_article: bool = False) -> str:
    """The whole report. Every text is escaped, in the template as in the pictures."""
    page = page_of(record, full=True, beside_article=beside_article)
    return _template().render(page=page, pictures=_pictures(record, beside_article=beside_article))


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unlag.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.tests["line"] = lambda element: isinstance(element, Line)
    environment.tests["table"] = lambda element: isinstance(element, Table)
    environment.tests["command"] = lambda element: isinstance(element, Command)
    return environment.get_template("report.html.jinja")


def _pictures(record: Record, *, beside_article: bool) -> dict[Picture, Markup | None]:
    if isinstance(record, Comparison):
        return {"verdict": pictures.verdict_picture(record), "rounds": pictures.rounds_picture(record)}
    if isinstance(record, Explanation):
        return {
            "verdict": pictures.verdict_picture(record.comparison),
            "causes": pictures.causes_picture(record),
            "losses": pictures.losses_picture(record),
        }
    if record.npu is not None:  # nothing was timed
        return {}
    return {
        **_pictures(record.explanation, beside_article=False),
        "stages": pictures.stages_picture(record, beside_article=beside_article),
    }
