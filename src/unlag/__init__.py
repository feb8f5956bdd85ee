"""Measures whether an optimized model is faster than the standard one, proves why it isn't, and fixes it.

Names are loaded when they are first used, so that ``import unlag`` stays quick and loads no runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unlag.api import compare, explain, fix
    from unlag.errors import UnlagError, UsageError
    from unlag.fixed_model import load
    from unlag.measure.comparison import Comparison
    from unlag.model.case import Case
    from unlag.model.variant import Variant
    from unlag.proof.explanation import Explanation
    from unlag.report.record import read_record
    from unlag.stages.fixed import Fix

    __version__: str

__all__ = [
    "Case",
    "Comparison",
    "Explanation",
    "Fix",
    "UnlagError",
    "UsageError",
    "Variant",
    "__version__",
    "compare",
    "explain",
    "fix",
    "load",
    "read_record",
]

_HOMES = {
    "Case": "unlag.model.case",
    "Comparison": "unlag.measure.comparison",
    "Explanation": "unlag.proof.explanation",
    "Fix": "unlag.stages.fixed",
    "UnlagError": "unlag.errors",
    "UsageError": "unlag.errors",
    "Variant": "unlag.model.variant",
    "compare": "unlag.api",
    "explain": "unlag.api",
    "fix": "unlag.api",
    "load": "unlag.fixed_model",
    "read_record": "unlag.report.record",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that holds it."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - reads files, and few ask

        return version("unlag")
    if name not in _HOMES:
        raise AttributeError(f"module 'unlag' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
