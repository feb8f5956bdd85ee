"""What a runtime makes of a model when it opens it: which of its passes acted, and how wide the graph is that runs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec
import onnx_ir as ir

from unlag.errors import Missing, UnlagError
from unlag.measure import exchange
from unlag.measure.bench import Bench
from unlag.measure.process import WorkerProcess
from unlag.model.graph import read_model
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.runtimes.contract import Profile

PROFILED_RUNS = 4

_ACTED = re.compile(r"GraphTransformer (\w+) modified: 1\b")
"""What onnxruntime logs of each pass at the severity ``info``."""


class InsideSession(msgspec.Struct, frozen=True):
    """An opened model from inside."""

    passes: tuple[str, ...] | Missing
    """Optimizer passes that changed the graph, in the order in which they first did."""
    width: int | Missing
    """How many of the heavy operators could run side by side."""


def look_inside(bench: Bench, variant: Variant) -> InsideSession:
    """Open the variant in a process of its own, profile it, and read what the runtime tells about its passes.

    Raises:
        ContenderError: it can't be opened or run.
    """
    patience_s = bench.protocol.patience_s
    told = variant.runtime == DEFAULT_RUNTIME
    opened = variant.with_options(log="info") if told else variant
    process = WorkerProcess("the model")
    try:
        with tempfile.TemporaryDirectory(prefix="unlag-") as name:
            feed = Path(name) / "feed"
            exchange.write_feeds(feed, [bench.workload.feed])
            process.ask(exchange.Open(opened, bench.threads, bench.cores, str(feed)), exchange.Opened, patience_s)
            made = process.ask(exchange.MakeProfile(PROFILED_RUNS, name), exchange.ProfileMade, patience_s)
            width = _width(Path(made.executed), made.profile) if made.executed else Missing(made.executed_missing)
            printed = process.printed()
    finally:
        process.end()
    unknown = Missing(f"{variant.runtime} does not tell which of its passes acted")
    return InsideSession(passes_that_acted(printed) if told else unknown, width)


def passes_that_acted(log: str) -> tuple[str, ...]:
    """Names of the passes that changed the graph, out of what onnxruntime has logged."""
    return tuple(dict.fromkeys(_ACTED.findall(log)))


def graph_width(graph: ir.Graph, heavy: AbstractSet[str]) -> int:
    """How many of the heavy operators have equally many of them before them, at most: these may run side by side."""
    depth_of: dict[ir.Value, int] = {}
    at_depth: dict[int, int] = {}
    for node in graph:
        depth = max((depth_of.get(value, 0) for value in node.inputs if value is not None), default=0)
        if node.op_type in heavy:
            at_depth[depth] = at_depth.get(depth, 0) + 1
            depth += 1
        depth_of.update(dict.fromkeys(node.outputs, depth))
    return max(at_depth.values(), default=0)


def _width(executed: Path, profile: Profile) -> int | Missing:
    heavy = {operator.op_type for operator in profile.operators if operator.kind in {"gemm", "attention"}}
    try:
        return graph_width(read_model(executed).graph, heavy)
    except UnlagError as error:
        return Missing(f"the executed graph can't be read: {error.message}")
