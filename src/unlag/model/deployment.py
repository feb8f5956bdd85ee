"""A fixed model in its folder: the file, how it is to be run, and nothing that needs unlag to be understood."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from unlag.errors import UsageError
from unlag.model.graph import external_files, read_model
from unlag.model.variant import Variant

DESCRIPTION = "unlag.json"
MODEL = "model.onnx"


class Made(msgspec.Struct, frozen=True):
    """For what, on what and with what a model was made: elsewhere other settings may be the best ones."""

    objective: str = ""
    workload: str = ""
    shape: str = ""
    """Of the inputs that were timed."""
    cpu: str = ""
    cores: int = 0
    versions: dict[str, str] = {}
    """Of unlag and the runtime."""


class Deployment(msgspec.Struct, frozen=True):
    """What ``unlag.json`` in the folder says."""

    runtime: str
    model: str
    options: dict[str, str]
    """Session options by their names in a spec; ``README.md`` has them as the runtime's own calls."""
    threads: int
    """Inside an operator, unless the options say otherwise; of each replica."""
    data: tuple[str, ...] = ()
    """The model's external data files, beside it, and what else was made of it."""
    replicas: int = 1
    """Processes that use the machine best together; more than one only where throughput is the objective."""
    made: Made = Made()


def deploy(  # noqa: PLR0913 - what goes out has these parts
    variant: Variant,
    threads: int,
    folder: Path,
    *,
    replicas: int = 1,
    made: Made | None = None,
    beside: Sequence[Path] = (),
) -> None:
    """Copy a variant's model with its external data and what belongs beside it into the folder; write how to run it.

    Raises:
        UsageError: the variant's model can't be read.
        OSError: the folder can't be written.
    """
    source = Path(variant.path)
    data = tuple(sorted(external_files(read_model(source))))
    for name in data:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / name, target)
    shutil.copyfile(source, folder / MODEL)
    for path in beside:
        shutil.copyfile(path, folder / path.name)
    data += tuple(path.name for path in beside)
    deployment = Deployment(variant.runtime, MODEL, variant.options, threads, data, replicas, made or Made())
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(deployment), indent=2) + b"\n")


def read_deployment(folder: Path) -> Deployment:
    """What was deployed into the folder.

    Raises:
        UsageError: the folder was not written by ``unlag fix``.
    """
    try:
        return msgspec.json.decode((folder / DESCRIPTION).read_bytes(), type=Deployment)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder} is not a folder that unlag fix has written: {error}") from error


def deployed_variant(folder: Path) -> tuple[Variant, int]:
    """The variant in the folder, and its threads.

    Raises:
        UsageError: the folder was not written by ``unlag fix``, or names a model outside itself.
    """
    deployment = read_deployment(folder)
    path = (folder / deployment.model).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UsageError(f"{folder / DESCRIPTION} names a model outside its own folder: {deployment.model!r}")
    return Variant(deployment.runtime, str(path), deployment.options), deployment.threads
