"""A variant: one model file, opened by one runtime with given options; written as a spec on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from unlag.errors import UsageError

DEFAULT_RUNTIME = "onnxruntime"

_RUNTIME_PREFIX = re.compile(r"^([a-z][a-z0-9_]+):(.+)$", re.DOTALL)
"""At least two letters, so that a Windows drive is not taken for a runtime."""

_OPTION = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*=")


class Variant(msgspec.Struct, frozen=True):
    """A model file, its runtime and its session options.

    ``options`` are the raw texts of the spec; the runtime knows which exist and what they may hold.
    """

    runtime: str
    path: str
    options: dict[str, str] = {}

    @property
    def spec(self) -> str:
        """The text that ``parse_spec`` reads back into this variant."""
        prefix = "" if self.runtime == DEFAULT_RUNTIME else f"{self.runtime}:"
        return prefix + ",".join([self.path, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def name(self) -> str:
        """A short name for tables: the file's name, with the options that tell it apart."""
        options = "".join(f",{key}={value}" for key, value in self.options.items())
        return Path(self.path).name + options

    def with_options(self, **options: str) -> Variant:
        """The same model with these options set or replaced."""
        return msgspec.structs.replace(self, options={**self.options, **options})

    def at(self, path: Path) -> Variant:
        """The same runtime and options for another file."""
        return msgspec.structs.replace(self, path=str(path))


def parse_spec(spec: str) -> Variant:
    """Read ``[runtime:]path[,option=value...]``. A comma belongs to the path unless ``name=`` follows it.

    Raises:
        UsageError: the spec names no path.
    """
    match = _RUNTIME_PREFIX.match(spec)
    runtime, rest = (match[1], match[2]) if match else (DEFAULT_RUNTIME, spec)
    path, *parts = rest.split(",")
    options: dict[str, str] = {}
    for part in parts:
        if _OPTION.match(part):
            key, value = part.split("=", 1)
            options[key] = value
        elif options:
            raise UsageError(f"{spec!r}: {part!r} is not of the form option=value")
        else:
            path = f"{path},{part}"
    if not path:
        raise UsageError(f"{spec!r} names no model file", hint="a spec is [runtime:]path[,option=value...]")
    return Variant(runtime=runtime, path=path, options=options)
