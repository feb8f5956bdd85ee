"""ONNX files as this runtime's parent process reads them. Apart from sessions: workers need no graph library."""

from __future__ import annotations

import gc
from pathlib import Path

from unlag.errors import Missing, UnlagError
from unlag.model.facts import GraphFacts, facts_of, signature_of
from unlag.model.graph import embedding_limits, external_files, read_model, save_model, size_on_disk_bytes
from unlag.rewrites.expose_tensors import expose_tensors
from unlag.runtimes.contract import Inspection


def inspect(path: Path) -> Inspection:
    """Signature, table sizes and bytes on disk. Raises UsageError as ``read_model`` does."""
    model = read_model(path)
    return Inspection(
        signature=signature_of(model), limits=embedding_limits(model), size_bytes=size_on_disk_bytes(model, path)
    )


def files(path: Path) -> tuple[Path, ...]:
    """The file and its external data. Raises UsageError as ``read_model`` does."""
    return (path, *(path.parent / name for name in sorted(external_files(read_model(path)))))


def read_graph(path: Path) -> GraphFacts | Missing:
    """Facts of the graph in a file, or why there are none."""
    try:
        return facts_of(read_model(path))
    except UnlagError as error:
        return Missing(f"no graph could be read: {error.message}")
    finally:
        gc.collect()  # models refer to themselves in circles: this one would stay beside the next ones


def write_exposed(path: Path, target: Path) -> tuple[str, ...]:
    """Write the model with every tensor an output; their names. Raises UsageError as ``read_model`` does."""
    model = read_model(path)
    names = expose_tensors(model)
    save_model(model, target)
    del model
    gc.collect()  # as above
    return names
