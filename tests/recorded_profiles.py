"""Profiles of GPUs in ``tests/recorded``: written by hand, since no GPU was at hand."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unlag.stages.gpu_choices import Round, Seen, choose

RECORDED = Path(__file__).parent / "recorded"
FILES = sorted(path.stem for path in RECORDED.glob("gpu_*.json"))


class Recorded(msgspec.Struct, forbid_unknown_fields=True):
    note: str
    seen: Seen


def seen(name: str, **changes) -> Seen:
    held = msgspec.json.decode((RECORDED / f"{name}.json").read_bytes(), type=Recorded).seen
    model = msgspec.structs.replace(held.model, **{k: changes.pop(k) for k in list(changes) if hasattr(held.model, k)})
    return msgspec.structs.replace(held, model=model, **changes)


def chosen(what: Seen, part: Round) -> list[str]:
    return [choice.name for choice in choose(what, part)[0]]


def reasons(what: Seen, part: Round) -> dict[str, str]:
    return {rejected.remedy: rejected.reason for rejected in choose(what, part)[1]}
