"""A workload of the user's own: ``module:function``, called with the request, as the command line found it.

The function returns a ``Workload``, or a mapping of arrays by input name for one unscored feed. The module is
looked for in the working folder first.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from unlag.errors import UnlagError, UsageError
from unlag.model.workload import Workload, WorkloadRequest
from unlag.workloads._feeds import fit_feed, shape_text


def load(request: WorkloadRequest) -> Workload:
    """What the function named by ``request.argument`` makes.

    Raises:
        UsageError: it can't be imported, fails, or returns something else.
    """
    text = request.argument
    made = _call(text, request)
    if isinstance(made, Workload):
        fit_feed(made.feed, request.signature, text)
        return made
    if isinstance(made, Mapping):
        arrays = {str(name): np.asarray(array) for name, array in made.items()}
        feed = fit_feed(arrays, request.signature, text)
        return Workload(name=text, shape=shape_text(feed), feed=feed, agreement=(feed,))
    raise UsageError(
        f"{text} returned {type(made).__name__}",
        hint="return an unlag Workload, or a dict of arrays by input name",
    )


def _call(text: str, request: WorkloadRequest) -> object:
    module_name, _, function_name = text.partition(":")
    with _working_folder_first():
        try:
            function = getattr(importlib.import_module(module_name), function_name, None)
        except Exception as error:
            raise UsageError(f"can't import {module_name}: {type(error).__name__}: {error}") from error
        if not callable(function):
            raise UsageError(f"{module_name} has no function {function_name}")
        try:
            made: object = function(request)
        except UnlagError:
            raise
        except Exception as error:
            raise UsageError(f"{text} failed: {type(error).__name__}: {error}") from error
    return made


@contextlib.contextmanager
def _working_folder_first() -> Iterator[None]:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
