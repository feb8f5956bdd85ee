"""Who is ahead, at equal accuracy; and the page for the docs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from benchmarks.peers.catalogue import PEERS, STANDARD
from benchmarks.peers.contract import Peer, Subject
from benchmarks.peers.plan import make_key, race_key, score_key
from benchmarks.peers.records import Failure, Made, Raced, Run, Scored, Timed

from unlag.measure.statistics import Interval
from unlag.model.workload import Shape

GOAL = 0.97
"""Of the best peer's time at equal accuracy: what unlag wants to end at, at most."""

EQUAL_POINTS = 0.3
"""A model that is at most so many points less accurate counts as equally accurate."""

FLOAT32_PEERS = {"openvino": "openvino-f32", "pytorch": "torch-compile"}
"""By runtime, the peer that shows what the runtime alone is worth."""

ALIKE = 0.9999
"""Cosine to the form that was scored, from which on nothing needs to be said of it."""

OUR_NAME = "unlag"
"""Which one of ours is held against the peers: the one that needs the standard only."""


class Entry(msgspec.Struct, frozen=True):
    """All that is known of a peer at one shape; ``trouble`` says why it has no time."""

    peer: Peer
    made: Made | None
    scored: Scored | None
    timed: Timed | None
    trouble: str = ""


class Standing(msgspec.Struct, frozen=True):
    """Ours beside the best peer at equal accuracy."""

    ours: Entry
    best: Entry
    ratio: Interval
    """Our time over the best peer's."""
    less_accurate: tuple[Entry, ...]
    """Peers that are faster than ours and less accurate than counts as equal."""

    @property
    def reached(self) -> bool:
        """Whether the goal is."""
        return self.ratio.estimate <= GOAL


def entries(run: Run, subject: Subject, shape: Shape, peers: Sequence[Peer] = PEERS) -> list[Entry]:
    """Every peer that has a record for the subject, the fastest first, those without a time last."""
    raced = run.records.get(race_key(subject, shape))
    times = {timed.peer: timed for timed in raced.times} if isinstance(raced, Raced) else {}
    dropped = raced.dropped if isinstance(raced, Raced) else {}
    found = []
    for peer in peers:
        made = run.records.get(make_key(subject, peer, shape))
        scored = run.records.get(score_key(subject, peer, shape))
        if made is None:
            continue
        trouble = next((r.message for r in (made, scored) if isinstance(r, Failure)), dropped.get(peer.name, ""))
        if not trouble and peer.name not in times:
            trouble = raced.message if isinstance(raced, Failure) else "it was not raced"
        found.append(
            Entry(
                peer,
                made if isinstance(made, Made) else None,
                scored if isinstance(scored, Scored) else None,
                times.get(peer.name),
                trouble,
            )
        )
    return sorted(found, key=lambda entry: _median(entry.timed) if entry.timed else float("inf"))


def standing(found: Sequence[Entry], ours: str = OUR_NAME) -> Standing | None:
    """Ours beside the fastest peer that is as accurate; nothing where either was not timed."""
    timed = [entry for entry in found if entry.timed and entry.scored]
    own = next((entry for entry in timed if entry.peer.name == ours), None)
    if own is None or own.timed is None or own.scored is None:
        return None
    others = [entry for entry in timed if not entry.peer.ours]
    equal = [entry for entry in others if as_accurate(entry.scored, own.scored)]
    if not equal:
        return None
    best = min(equal, key=lambda entry: _median(entry.timed))
    faster = [entry for entry in others if entry not in equal and _median(entry.timed) < _median(own.timed)]
    if best.timed is None:
        return None
    return Standing(own, best, own.timed.ratio_to(best.timed), tuple(faster))


def as_accurate(one: Scored | None, other: Scored) -> bool:
    """Whether one is at most ``EQUAL_POINTS`` below the other, in points and in winners."""
    if one is None:
        return False
    winners = one.top1 is None or other.top1 is None or 100 * (other.top1 - one.top1) <= EQUAL_POINTS
    return other.points - one.points <= EQUAL_POINTS and winners


def _median(timed: Timed | None) -> float:
    if timed is None:
        return float("inf")
    values = sorted(timed.medians_ms)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def verdict_of(found: Sequence[Entry]) -> list[str]:
    """Sentences under a table: is the goal reached, or who wins and what is known of why."""
    held = standing(found)
    if held is None:
        return ["unlag's own model has no time or no score here, so nothing is said of who is ahead."]
    name, ratio = held.best.peer.title, _ratio_text(held.ratio)
    if held.reached:
        lines = [f"**Reached**: unlag takes {ratio} of the time of the best peer at equal accuracy, {name}."]
    elif held.ratio.estimate < 1:
        lines = [
            f"**Not reached**: ahead of the best peer at equal accuracy, {name}, but by less: {ratio} of its time."
        ]
    else:
        lines = [f"**Not reached**: {name} wins; unlag takes {ratio} of its time."]
    if not held.reached:
        lines += [f"What {entry.peer.title} runs: {_note(entry)}." for entry in (held.best, held.ours)]
        lines += _runtimes_part(found, held.best)
    for entry in held.less_accurate:
        lost = _lost(entry.scored, held.ours.scored)
        lines.append(f"{entry.peer.title} is faster than unlag, but {lost} less accurate.")
    return lines + _same_end(found, held)


def _runtimes_part(found: Sequence[Entry], best: Entry) -> list[str]:
    """How much of it is the runtime: what that does with the standard in float32."""
    by_name = {entry.peer.name: entry for entry in found}
    runtime = best.made.artifact.variant.runtime if best.made else ""
    float32, standard = by_name.get(FLOAT32_PEERS.get(runtime, "")), by_name.get(STANDARD)
    if float32 is None or standard is None or float32.timed is None or standard.timed is None:
        return []
    ratio = _ratio_text(float32.timed.ratio_to(standard.timed))
    return [f"Its runtime: {float32.peer.title} takes {ratio} of ONNX Runtime's time for the standard itself."]


def _same_end(found: Sequence[Entry], held: Standing) -> list[str]:
    """How the other starts of unlag ended, beside the one from the standard alone."""
    lines = []
    for entry in found:
        if entry.peer.ours and entry.peer.name != OUR_NAME and entry.timed and held.ours.timed:
            ratio = _ratio_text(entry.timed.ratio_to(held.ours.timed))
            lines.append(f"{entry.peer.title}: {ratio} of the time of the one from the standard alone.")
    return lines


def _lost(one: Scored | None, other: Scored | None) -> str:
    if one is None or other is None:
        return "of unknown accuracy, so perhaps"
    if other.points - one.points > EQUAL_POINTS or one.top1 is None or other.top1 is None:
        return f"{other.points - one.points:.2f} points"
    return f"{100 * (other.top1 - one.top1):.1f} % of the winners"


def _note(entry: Entry) -> str:
    return entry.made.artifact.note if entry.made and entry.made.artifact.note else "nothing is known of it"


HEAD = ("", "time", "of ONNX Runtime float32", "accuracy", "size", "first answer", "made in")


def markdown_of(run: Run, plan: Sequence[tuple[Subject, Sequence[Shape]]]) -> str:
    """The page for the docs: each subject at its shapes."""
    parts = [_INTRODUCTION, "\n".join(f"- {line}" for line in facts_of(run))]
    for subject, shapes in plan:
        parts.append(f"## {subject.title}")
        for shape in shapes:
            found = entries(run, subject, shape)
            if found:
                parts += _shape_section(run, subject, shape, found)
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """# unlag beside other tools

What `python -m benchmarks.peers` gave: what `unlag fix` makes of a model, and what other tools make of the same file.
All were timed in the same interleaved rounds, each in a process of its own, pinned to the same cores, with the same
threads, and frozen when it is not its turn. *First answer* is loading and the first run together, in a fresh process:
where a model is compiled, that is when. *Made in* is how long the tool took. A peer counts as *equally accurate* down
to 0.3 points below unlag."""


def facts_of(run: Run) -> list[str]:
    """Date, machine and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    return [
        f"{run.date}, {run.host}, {run.threads} threads; instruction sets: {', '.join(run.isa) or 'not known'}",
        f"{run.rounds} undisturbed rounds wanted in each race, seed {run.seed}",
        versions,
    ]


def _shape_section(run: Run, subject: Subject, shape: Shape, found: Sequence[Entry]) -> list[str]:
    raced = run.records.get(race_key(subject, shape))
    label = raced.shape if isinstance(raced, Raced) else str(shape)
    metric = next((entry.scored.metric for entry in found if entry.scored), "accuracy")
    rows = [_row(entry, found) for entry in found if entry.timed]
    troubles = [[entry.peer.title, entry.trouble] for entry in found if not entry.timed]
    parts = [f"### {subject.name}, {label}", _table(HEAD, rows), f"Accuracy: {metric}."]
    if isinstance(raced, Raced):
        parts[-1] += " " + _noise(raced)
    parts.append("\n".join(f"- {line}" for line in verdict_of(found)))
    if troubles:
        parts.append(_table(("No result", "Why"), troubles))
    return parts


def _noise(raced: Raced) -> str:
    standard = next((timed for timed in raced.times if timed.peer == STANDARD), None)
    copy = (
        "" if standard is None else f" A second copy of the standard: {_ratio_text(raced.control.ratio_to(standard))}."
    )
    return f"{raced.rounds} rounds count, {raced.disturbed_rounds} were disturbed.{copy}"


def _row(entry: Entry, found: Sequence[Entry]) -> list[str]:
    standard = next((other.timed for other in found if other.peer.name == STANDARD), None)
    timed, made = entry.timed, entry.made
    if timed is None or made is None:
        return []
    title = f"**{entry.peer.title}**" if entry.peer.ours else entry.peer.title
    return [
        title,
        f"{_median(timed):.2f} ms" + ("" if timed.steady else " (never steady)"),
        _ratio_text(timed.ratio_to(standard)) if standard else "–",
        _accuracy(entry.scored),
        f"{made.artifact.size_bytes / 1e6:.1f} MB",
        _seconds(timed.first_answer_ms / 1e3),
        "–" if entry.peer.name == STANDARD else _seconds(made.seconds),
    ]


def _accuracy(scored: Scored | None) -> str:
    if scored is None:
        return "–"
    parts = [f"{scored.points:.2f}"]
    parts += [] if scored.top1 is None else [f"{scored.top1:.0%}"]
    parts += [] if scored.largest_error is None else [f"error {scored.largest_error:.1%}"]
    if scored.alike is not None and scored.alike < ALIKE:
        parts.append(f"its form for all shapes, cosine {scored.alike:.4f} to it")
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _ratio_text(ratio: Interval) -> str:
    return f"{ratio.estimate:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def line_of(run: Run, key: str) -> str:
    """One finished step in a line, for the screen."""
    match run.records[key]:
        case Made() as made:
            size = f"{made.artifact.size_bytes / 1e6:.1f} MB"
            return f"{key}: {size} in {_seconds(made.seconds)}; {made.artifact.note}"
        case Scored() as scored:
            return f"{key}: {_accuracy(scored)} ({scored.metric})"
        case Raced() as raced:
            order = sorted(raced.times, key=_median)
            times = ", ".join(f"{timed.peer} {_median(timed):.2f}" for timed in order)
            dropped = "".join(f"; {name} DROPPED: {why}" for name, why in raced.dropped.items())
            return f"{key}: {times} ms; {_noise(raced)}{dropped}"
        case Failure() as failure:
            return f"{key}: {'NOT FOR IT' if failure.final else 'FAILED'}: {failure.message}"
