"""The catalogue of causes as one Markdown page: what ``docs/causes.md`` holds, made from the causes themselves."""

from __future__ import annotations

import importlib
import inspect

from unlag.causes.contract import Cause, Safety, find_causes
from unlag.report.document import Line, Page, Section

HEAD = """# Causes

Made from `src/unlag/causes/*.py` by the tests: `UPDATE_GOLDEN=1 pytest tests/test_catalogue.py` writes it anew.
Each is FOUND, RULED_OUT, NOT_CHECKED or FAILED with a reason; what is found is proven by taking it away.
"""

_SAFETY: dict[Safety, str] = {
    "EXACT": "the outputs stay the same up to rounding",
    "CLOSE": "the outputs may change a little",
    "ADVICE": "for you to do; unlag does not apply it",
}


def render_catalogue() -> str:
    """All causes, by dimension and name."""
    causes = sorted(find_causes(), key=lambda cause: (cause.dimension, cause.id))
    return HEAD + "".join(_entry(cause) for cause in causes)


def cause_page(cause: Cause) -> Page:
    """What is known of one cause, for a terminal: its paragraphs without markup, and its remedies."""
    paragraphs = [" ".join(text.split()).replace("`", "") for text in _text(cause).split("\n\n")]
    facts = f"{cause.title} · {cause.dimension} · costs {_costs(cause)}"
    remedies = tuple(Line(f"remedy {r.id}: {r.title} ({_SAFETY[r.safety]})") for r in cause.remedies)
    sections = [Section((Line(cause.id, strong=True), Line(facts)))]
    sections += [Section((Line(paragraph),)) for paragraph in paragraphs if paragraph]
    return Page(cause.title, tuple([*sections, Section(remedies)] if remedies else sections))


def _text(cause: Cause) -> str:
    return (inspect.getdoc(importlib.import_module(f"unlag.causes.{cause.id}")) or "").strip()


def _costs(cause: Cause) -> str:
    return " and ".join(sorted(cause.affects, reverse=True))


def _entry(cause: Cause) -> str:
    text = _text(cause)
    remedies = "".join(f"- remedy `{r.id}`: {r.title} ({r.safety})\n" for r in cause.remedies)
    return f"\n## {cause.id}\n\n**{cause.title}** · {cause.dimension} · costs {_costs(cause)}\n\n{text}\n\n{remedies}"
