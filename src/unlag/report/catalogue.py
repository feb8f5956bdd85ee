"""The catalogue of causes as one Markdown page: what ``docs/causes.md`` holds, made from the causes themselves."""

from __future__ import annotations

import importlib
import inspect

from unlag.causes.contract import Cause, find_causes

HEAD = """# Causes

Made from `src/unlag/causes/*.py` by the tests: `UPDATE_GOLDEN=1 pytest tests/test_catalogue.py` writes it anew.
Each is FOUND, RULED_OUT, NOT_CHECKED or FAILED with a reason; what is found is proven by taking it away.
"""


def render_catalogue() -> str:
    """All causes, by dimension and name."""
    causes = sorted(find_causes(), key=lambda cause: (cause.dimension, cause.id))
    return HEAD + "".join(_entry(cause) for cause in causes)


def _entry(cause: Cause) -> str:
    text = inspect.getdoc(importlib.import_module(f"unlag.causes.{cause.id}")) or ""
    affects = " and ".join(sorted(cause.affects, reverse=True))
    remedies = "".join(f"- remedy `{r.id}`: {r.title} ({r.safety})\n" for r in cause.remedies)
    return f"\n## {cause.id}\n\n**{cause.title}** · {cause.dimension} · costs {affects}\n\n{text.strip()}\n\n{remedies}"
