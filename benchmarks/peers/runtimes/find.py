"""unlag's runtimes and this benchmark's own, by name."""

from __future__ import annotations

import importlib
from typing import cast

from unlag.errors import UsageError
from unlag.runtimes.contract import Runtime, find_runtime

OWN = ("openvino", "pytorch")


def find(name: str) -> Runtime:
    """The runtime of that name.

    Raises:
        UsageError: no such runtime, or it can't be used here (with the reason).
    """
    if name not in OWN:
        return find_runtime(name)
    runtime = cast("Runtime", importlib.import_module(f"benchmarks.peers.runtimes.{name}").RUNTIME)
    missing = runtime.missing()
    if missing is not None:
        raise UsageError(f"runtime {name} can't be used here: {missing.reason}")
    return runtime
