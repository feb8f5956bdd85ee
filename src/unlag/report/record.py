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
from unlag.observe.evidence import EvidenceRecord
from unlag.observe.plausible import find_fault
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
    return parse_record(_bytes_of(path), str(path))


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error


def parse_record(data: bytes, name: str) -> Record:
    """Read a record from JSON; ``name`` is for messages."""
    content = _content(data, name)
    kind = content["kind"]
    if kind == "evidence":
        raise UsageError(f"{name} holds evidence, not a report", hint="unlag diagnose makes one of it")
    if kind not in _TYPES:
        raise UsageError(f"{name} is a record of kind {kind!r}; this version of unlag reads {', '.join(_TYPES)}")
    return _convert(content, _TYPES[kind], name)


def _content(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object, of a kind that is a text and of this version's schema."""
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not a whole JSON file: {error}") from error
    if not isinstance(content, dict) or "kind" not in content or "schema" not in content:
        raise UsageError(f"{name} is no record of unlag: it names no kind and schema", hint="--json FILE writes one")
    if content["schema"] != SCHEMA:
        raise UsageError(f"{name} has schema {content['schema']!r}; this version of unlag reads schema {SCHEMA}")
    if not isinstance(content["kind"], str):
        raise UsageError(f"{name} is a record of kind {content['kind']!r}; kinds are texts")
    return content


def read_evidence(path: Path) -> EvidenceRecord:
    """Read what ``--save-evidence`` wrote.

    Raises:
        UsageError: the file can't be read, is no evidence of a schema that this version knows, or holds what can't be.
    """
    content = _content(_bytes_of(path), str(path))
    if content["kind"] != "evidence":
        raise UsageError(
            f"{path} holds no evidence but a record of kind {content['kind']!r}", hint="unlag report shows it"
        )
    record = _convert(content, EvidenceRecord, str(path))
    fault = find_fault(record)
    if fault:
        raise UsageError(f"{path} is not what was measured: {fault}", hint="--save-evidence writes it anew")
    return record


def _convert(content: object, wanted: type[_S], name: str) -> _S:
    try:
        return msgspec.convert(_unbounded(content), wanted)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"{name} is not a valid record: {error}") from error


def _unbounded(content: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(content, list):
        if any(isinstance(item, (dict, list)) for item in content):
            return [_unbounded(item) for item in content]
        return [math.nan if item is None else item for item in content]
    if not isinstance(content, dict):
        return content
    if set(content) in _MAY_BE_UNBOUNDED:
        ends = {"low": -math.inf, "high": math.inf}
        return {key: ends.get(key, math.nan) if value is None else value for key, value in content.items()}
    return {key: _unbounded(value) for key, value in content.items()}
