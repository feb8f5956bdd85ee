"""What a workload file must offer, and how a workload is found by the text of ``--workload``.

A workload is one file in this folder with one ``load(request) -> Workload``; it is found by its file name.
Files whose name starts with an underscore are shared by workloads.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Protocol, cast

from unlag.errors import UsageError, did_you_mean
from unlag.model.workload import Workload, WorkloadRequest

_BY_ARGUMENT = {"npz": "FILE.npz", "module_function": "module:function"}
"""Workloads that are known by the form of their argument, not by a name of their own."""

_FUNCTION = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")


class WorkloadModule(Protocol):
    """What a file in this folder offers."""

    def load(self, request: WorkloadRequest) -> Workload:
        """Make the workload.

        Raises:
            UsageError: it can't be made for this signature, or its data can't be read.
        """
        ...


def workload_forms() -> tuple[str, ...]:
    """What ``--workload`` may be, as a user writes it."""
    folder = Path(__file__).parent
    names = sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if m.name != "contract" and m.name[0] != "_")
    return tuple(_BY_ARGUMENT.get(name, name) for name in names)


def load_workload(text: str, request: WorkloadRequest) -> Workload:
    """Make the workload that ``text`` names: ``stsb``, ``sentiment``, ``random``, ``FILE.npz``, ``module:function``.

    Args:
        text: what the user wrote.
        request: what to make it from; its ``argument`` is set from the text.

    Raises:
        UsageError: no such workload, or it can't be made for this model.
    """
    name, argument = _split(text)
    module = cast("WorkloadModule", importlib.import_module(f"unlag.workloads.{name}"))
    return module.load(dataclasses.replace(request, argument=argument))


def _split(text: str) -> tuple[str, str]:
    """The file in this folder that makes the workload, and what it is made from."""
    if text.endswith(".npz"):
        return "npz", text
    if _FUNCTION.match(text):
        return "module_function", text
    forms = workload_forms()
    if text in forms and text not in _BY_ARGUMENT.values():
        return text, ""
    raise UsageError(f"there is no workload {text!r}", hint=did_you_mean(text, forms, f"workloads: {', '.join(forms)}"))
