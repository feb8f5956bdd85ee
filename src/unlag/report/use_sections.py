"""How a fixed model is used best: texts in batches by length, and replicas that share the cores."""

from __future__ import annotations

from unlag.measure.statistics import Interval
from unlag.report import numbers
from unlag.report.document import Column, Line, Row, Section, Table
from unlag.stages.fixed import Fix, Lengths, OtherRuntime, Rate, Throughput, Way


def use_sections(fix: Fix) -> list[Section]:
    """Other runtimes, rows a second, and what padding costs, where they were measured."""
    sections = [_runtimes(fix.runtimes)] if fix.runtimes else []
    if fix.throughput is not None:
        sections.append(_throughput(fix.throughput))
    if fix.lengths is not None:
        sections.append(_lengths(fix.lengths))
    return sections


def _runtimes(found: tuple[OtherRuntime, ...]) -> Section:
    columns = (
        Column("runtime"),
        Column("its best", wordy=True),
        Column("of the time", numeric=True),
        Column("points lost", numeric=True),
        Column("size", numeric=True),
    )
    rows = tuple(
        Row(
            (
                one.runtime,
                one.model,
                numbers.plus_minus(one.ratio, 2),
                numbers.UNKNOWN if one.loss is None else numbers.plus_minus(one.loss, 2),
                numbers.size(one.size_bytes),
            ),
            "good" if one.ratio.high < 1 else "plain",
        )
        for one in found
    )
    legend = "of the time: over that of the model that the stages have made for the standard's runtime"
    return Section((Table(columns, rows), Line(legend, tone="quiet")), title="Other runtimes")


def _throughput(found: Throughput) -> Section:
    columns = (
        Column("replicas × threads"),
        Column("standard, rows/s", numeric=True),
        Column("fixed, rows/s", numeric=True),
        Column("fixed, memory", numeric=True),
    )
    standard = {(rate.replicas, rate.threads): rate for rate in found.standard}
    fixed = {(rate.replicas, rate.threads): rate for rate in found.fixed}
    rows = [
        Row(
            (
                f"{replicas} × {threads}",
                _rows_per_s(standard.get((replicas, threads))),
                _rows_per_s(fixed.get((replicas, threads))),
                numbers.size(fixed[replicas, threads].memory_bytes)
                if (replicas, threads) in fixed
                else numbers.UNKNOWN,
            ),
            "good" if (replicas, threads) == (found.replicas, found.threads) else "plain",
        )
        for replicas, threads in sorted(standard.keys() | fixed.keys())
    ]
    best = f"most gets done with {found.replicas} × {found.threads}: {numbers.ratio_of(found.gain)} the standard's best"
    legend = f"rows/s: all replicas together, {found.batch} rows a run, on {found.cores} cores"
    pinned = "" if found.pinned else "; this system can't keep replicas on cores of their own"
    lines = [Line(best, strong=True), Line(legend + pinned, tone="quiet")]
    lines += [Line(f"{refused.remedy}: {refused.reason}", tone="quiet") for refused in found.refused]
    return Section((Table(columns, tuple(rows)), *lines, *_disturbed(quiet=found.quiet)), title="Rows a second")


def _rows_per_s(rate: Rate | None) -> str:
    if rate is None:
        return numbers.UNKNOWN
    return numbers.plus_minus(rate.rows_per_s, 0 if rate.rows_per_s.estimate >= 100 else 1)


def _lengths(found: Lengths) -> Section:
    columns = (
        Column("texts in batches", wordy=True),
        Column("batches", numeric=True),
        Column("padding", numeric=True),
        Column("time, ms", numeric=True),
        Column("of the time", numeric=True),
    )
    like_ms = found.ways[0].time_ms.estimate
    rows = tuple(_way_row(found, way, like_ms) for way in found.ways)
    arrival, best = found.ways[0], found.best
    said = [
        f"texts of {found.shortest} to {found.longest} tokens, {found.median} in the middle",
        f"padding to the longest in batches of {found.batch} wastes {numbers.percent(arrival.padding)} of the tokens",
    ]
    if best is not arrival:
        said.append(f"{best.name} they take {numbers.number(best.ratio.estimate, 2)} of the time")
    sample = "" if found.rows == found.texts else f", a sample of {found.rows}"
    legend = f"{found.texts} texts{sample}, in random order; unlag.load(...).run_rows(feeds) runs them by equal lengths"
    lines = (Line("; ".join(said), strong=True), Line(legend, tone="quiet"))
    return Section((*lines, Table(columns, rows), *_disturbed(quiet=found.quiet)), title="Texts of many lengths")


def _way_row(found: Lengths, way: Way, like_ms: float) -> Row:
    widths = f" of {', '.join(map(str, way.widths))} tokens" if way.widths else ""
    first = way is found.ways[0]
    return Row(
        (
            way.name + widths,
            str(way.batches),
            numbers.percent(way.padding),
            numbers.plus_minus(way.time_ms, numbers.ms_decimals(like_ms)),
            "1" if first else _ratio(way.ratio),
        ),
        "good" if way is found.best else "plain",
    )


def _ratio(ratio: Interval) -> str:
    return numbers.plus_minus(ratio, 2)


def _disturbed(*, quiet: bool) -> tuple[Line, ...]:
    return () if quiet else (Line("other processes ran on the cores in the meantime", tone="unsure"),)
