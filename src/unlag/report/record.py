"""Records as JSON files: what ``--json`` writes and ``unlag report`` reads.

JSON has no infinity. An end of an interval that nothing bounds is written as null, and read back by its place:
``low`` is minus infinity, ``high`` plus infinity, any other number not a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from unlag.errors import UsageError
from unlag.measure.comparison import Comparison
from unlag.proof.explanation import Explanation
from unlag.stages.fixed import Fix

Record = Comparison | Explanation | Fix

SCHEMA = 1
"""History: 1, the first (names are fixed, more may be added)."""

_TYPES: Mapping[str, type[Record]] = {"comparison": Comparison, "explanation": Explanation, "fix": Fix}
_MAY_BE_UNBOUNDED = ({"estimate", "low", "high"}, {"median", "low", "high"}, {"metric", "value"})
_NUMBERS = re.compile(rb"\[\n\s+(-?[0-9.eE+-]+(?:,\n\s+-?[0-9.eE+-]+)*)\n\s+\]")
"""A list of numbers, one a line. Strings can't match: JSON writes a line break in them as ``\\n``."""

_S = TypeVar("_S", bound=msgspec.Struct)


def to_json(record: msgspec.Struct) -> bytes:
    """The record as indented JSON; lists of numbers stay on one line."""
    indented = msgspec.json.format(msgspec.json.encode(record), indent=2)
    return _NUMBERS.sub(lambda match: b"[" + re.sub(rb"\s+", b" ", match[1]) + b"]", indented) + b"\n"


def read_record(path: Path) -> Record:
    """Read what ``to_json`` wrote.

    Raises:
        UsageError: the file can't be read, is no JSON, or is no record of a kind and schema that this version knows.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    return parse_record(data, str(path))


def parse_record(data: bytes, name: str) -> Record:
    """Read a record from JSON; ``name`` is for messages."""
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not a whole JSON file: {error}") from error
    if not isinstance(content, dict) or "kind" not in content or "schema" not in content:
        raise UsageError(f"{name} is no record of unlag: it names no kind and schema", hint="--json FILE writes one")
    kind, schema = content["kind"], content["schema"]
    if schema != SCHEMA:
        raise UsageError(f"{name} has schema {schema!r}; this version of unlag reads schema {SCHEMA}")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise UsageError(f"{name} is a record of kind {kind!r}; this version of unlag reads {', '.join(_TYPES)}")
    return _convert(content, _TYPES[kind], name)


def _convert(content: object, wanted: type[_S], name: str) -> _S:
    try:
        return msgspec.convert(_unbounded(content), wanted)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"{name} is not a valid record: {error}") from error


def _unbounded(content: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(content, list):
        return [_unbounded(item) for item in content] if any(isinstance(i, (dict, list)) for i in content) else content
    if not isinstance(content, dict):
        return content
    if set(content) in _MAY_BE_UNBOUNDED:
        ends = {"low": -math.inf, "high": math.inf}
        return {key: ends.get(key, math.nan) if value is None else value for key, value in content.items()}
    return {key: _unbounded(value) for key, value in content.items()}
