"""What a fix for the NPU says: what of the model runs there, before and after, and how right it is in the simulator."""

from __future__ import annotations

from collections.abc import Callable

from unlag.report import numbers
from unlag.report.document import Column, Command, Line, Page, Row, Section, Table, Tone
from unlag.stages.fixed import Fix, Npu, OnNpu, PartScore

MOST_REASONS = 8
"""Rows of what stays on the CPU; the record has all of them."""


def npu_page(fix: Fix, npu: Npu) -> Page:
    """The whole report."""
    sections = (
        Section(npu_lines(fix, npu), title="On the NPU"),
        _before_and_after(npu),
        *_fallbacks("before", npu.before),
        *_fallbacks("after", npu),
        _choices(npu),
        Section(tuple(Line(f"Not measured: {what}", tone="quiet") for what in npu.not_measured)),
        Section(
            (
                Line(f"The fixed model is in {fix.output}: model.onnx for any chip, context.onnx for chip {npu.chip}"),
                Command("Load it", f"unlag.load({fix.output!r})"),
            )
        ),
    )
    name = fix.explanation.comparison.standard.spec.rpartition("/")[2]
    return Page(f"{name}, for the NPU", sections)


def npu_lines(fix: Fix, npu: Npu) -> tuple[Line, ...]:
    """The verdict: what runs where, and what was lost."""
    notes = (Line(note, strong=True) for note in fix.notes)
    place, tone = _place(npu)
    return (*notes, Line(f"the fixed model {place}", tone=tone, strong=True), *_accuracy_lines(npu))


def _place(npu: OnNpu) -> tuple[str, Tone]:
    if npu.whole:
        return f"runs on the NPU in one piece: {npu.npu_nodes} nodes, none on the CPU", "good"
    return f"runs on the NPU in {npu.partitions} pieces, with {npu.fallback_nodes} nodes on the CPU", "bad"


def _accuracy_lines(npu: Npu) -> tuple[Line, ...]:
    scored = npu.simulated
    if scored is None:
        cosine = numbers.UNKNOWN if npu.cosine is None else numbers.number(npu.cosine, 4)
        return (
            Line(f"no accuracy was measured: its outputs have cosine {cosine} to the standard's, in the simulator"),
        )
    change, metric = scored.change, scored.accuracy.metric
    words = f"{abs(change.estimate):.1f} points {'less' if change.estimate < 0 else 'more'} accurate in the simulator"
    aside = (
        f"{metric} {numbers.number(scored.accuracy.value, 1)} against {numbers.number(scored.standard.value, 1)} on "
        f"the same {scored.items} of {scored.of} items · interval {numbers.points_range(change)}"
    )
    return (Line(words, aside),)


def _before_and_after(npu: Npu) -> Section:
    columns = (Column(""), Column("before", wordy=True), Column("after", wordy=True))
    rows = tuple(Row((title, *_cells(npu, cell)), tone) for title, cell, tone in _ROWS)
    time = numbers.milliseconds(1e3 * npu.simulated_run_s)
    legend = (
        f"compiled by {npu.compiler} for chip {npu.chip}; a run takes {time} in its simulator on a core of this "
        "machine, which is no time of an NPU"
    )
    failed = [Line(f"before: {npu.before.failed}", tone="bad")] if npu.before.failed else []
    lines = (*failed, Line(legend, tone="quiet"))
    return Section((Table(columns, rows), *lines), title="Before and after")


def _cells(npu: Npu, cell: Callable[[OnNpu], str]) -> tuple[str, str]:
    before = numbers.UNKNOWN if npu.before.failed and not npu.before.partitions else cell(npu.before)
    return (npu.before.model if cell is _model else before), cell(npu)


def _model(one: OnNpu) -> str:
    return one.model


def _counted(name: str) -> Callable[[OnNpu], str]:
    return lambda one: str(one.operators.get(name, 0))


def _cosine(one: OnNpu) -> str:
    return numbers.UNKNOWN if one.cosine is None else numbers.number(one.cosine, 4)


def _simulated(one: OnNpu) -> str:
    return _score(one.simulated)


def _by_codes(one: OnNpu) -> str:
    return _score(one.by_codes)


def _score(scored: PartScore | None) -> str:
    """The points against the standard's on the same items, with their interval."""
    if scored is None:
        return numbers.UNKNOWN
    change = scored.change
    signed = f"{'+' if change.estimate > 0 else ''}{numbers.number(change.estimate, 1)}"
    return f"{signed} ± {numbers.half(change, 1)} points, {scored.items} of {scored.of} items"


_ROWS: tuple[tuple[str, Callable[[OnNpu], str], Tone], ...] = (
    ("model", _model, "plain"),
    ("pieces on the NPU", lambda one: str(one.partitions), "plain"),
    ("nodes on the NPU", lambda one: str(one.npu_nodes), "plain"),
    ("nodes on the CPU", lambda one: str(one.fallback_nodes), "plain"),
    ("operators that are compiled", lambda one: str(sum(one.operators.values())), "plain"),
    ("of these Transpose", _counted("Transpose"), "quiet"),
    ("of these Reshape", _counted("Reshape"), "quiet"),
    ("of these Convert", _counted("Convert"), "quiet"),
    ("context binary", lambda one: numbers.size(one.context_bytes), "plain"),
    ("cosine in the simulator", _cosine, "plain"),
    ("in the simulator, to the standard", _simulated, "plain"),
    ("by its codes on the CPU, to it", _by_codes, "plain"),
)


def _fallbacks(when: str, one: OnNpu) -> list[Section]:
    """What stays on the CPU, and why."""
    if not one.fallback:
        return []
    columns = (Column("operator"), Column("nodes", numeric=True), Column("why", wordy=True))
    shown = one.fallback[:MOST_REASONS]
    rows = tuple(Row((kind.operator, str(kind.nodes), kind.reason)) for kind in shown)
    more = len(one.fallback) - len(shown)
    lines = (Line(f"and {more} more kinds", tone="quiet"),) if more else ()
    return [Section((Table(columns, rows), *lines), title=f"On the CPU {when}")]


def _choices(npu: Npu) -> Section:
    """Every rewrite and every choice of numbers that was tried."""
    columns = (Column(""), Column("", wordy=True), Column("", wordy=True))
    rows = [Row(("kept", kept.remedy, kept.reason)) for kept in npu.kept]
    rows += [Row(("rejected", rejected.remedy, rejected.reason), "quiet") for rejected in npu.rejected]
    return Section((Table(columns, tuple(rows)),), title="What was tried")
