"""A fixed model in its folder: the file, how it is to be run, and nothing that needs unlag to be understood."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unlag.errors import UsageError
from unlag.model.variant import Variant

DESCRIPTION = "unlag.json"
MODEL = "model.onnx"


class Deployment(msgspec.Struct, frozen=True):
    """What ``unlag.json`` in the folder says."""

    runtime: str
    model: str
    options: dict[str, str]
    threads: int


def write_description(folder: Path, deployment: Deployment) -> None:
    """Write ``unlag.json``."""
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(deployment), indent=2) + b"\n")


def read_deployment(folder: Path) -> tuple[Variant, int]:
    """The variant in the folder, and its threads.

    Raises:
        UsageError: the folder was not written by ``unlag fix``, or names a model outside itself.
    """
    try:
        deployment = msgspec.json.decode((folder / DESCRIPTION).read_bytes(), type=Deployment)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder} is not a folder that unlag fix has written: {error}") from error
    path = (folder / deployment.model).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UsageError(f"{folder / DESCRIPTION} names a model outside its own folder: {deployment.model!r}")
    return Variant(deployment.runtime, str(path), deployment.options), deployment.threads
