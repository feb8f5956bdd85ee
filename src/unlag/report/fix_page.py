"""What a fix says: the explanation, the staged table, what was kept and what not, and how to load the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unlag.measure.comparison import Accuracy
from unlag.measure.statistics import Interval
from unlag.report import numbers
from unlag.report.comparison_page import headline, names, warnings_section
from unlag.report.document import Column, Command, Line, Page, Row, Section, Table
from unlag.report.explanation_page import cause_sections
from unlag.report.npu_page import npu_page
from unlag.report.use_sections import use_sections
from unlag.stages.fixed import Fix, Rejected, StageResult

STAGE_TITLES = {
    "baseline": "Baseline",
    "quantization": "Quantization tuned",
    "graph": "Graph restructured",
    "hardware": "Hardware-optimized",
}


FEW = 3
"""More remedies with one reason than this are one row."""


@dataclass(frozen=True)
class ArticleStage:
    """A row of the article's table: minutes, points, gigabytes."""

    time_min: float
    accuracy: float
    size_gb: float | None


ARTICLE = {
    "baseline": ArticleStage(14.4, 57, 3.2),
    "quantization": ArticleStage(11.2, 59, 3.1),
    "graph": ArticleStage(9.8, 60, 3.3),
    "hardware": ArticleStage(8.1, 60, 3.2),
}
ARTICLE_STANDARD = ArticleStage(6.8, 60, None)


def fix_page(fix: Fix, *, full: bool, beside_article: bool) -> Page:
    """The whole report; with ``beside_article`` each stage stands beside the article's."""
    if fix.npu is not None:
        return npu_page(fix, fix.npu)
    if fix.result is None:
        raise ValueError("a fix has neither a result nor an NPU")
    before = fix.explanation.comparison
    notes = [Line(note, strong=True) for note in fix.notes]
    alone = before.standard.spec == before.variant.spec
    sections = [
        *([] if alone else [Section(headline(before), title="Before", picture="verdict")]),
        *([] if alone else cause_sections(fix.explanation, full=full)),
        Section((*notes, *headline(fix.result, "the fixed model")), title="After"),
        _staged(fix),
        *_choices(fix, full=full),
        *use_sections(fix),
        *([_beside_article(fix)] if beside_article else []),
        *warnings_section((*before.warnings, *fix.explanation.warnings, *fix.result.warnings)),
        Section((Line(f"The fixed model is in {fix.output}"), Command("Load it", f"unlag.load({fix.output!r})"))),
    ]
    title = f"{names(before)[0]}, made better" if alone else "{} against {}, fixed".format(*names(before))
    return Page(title, tuple(section for section in sections if section.elements))


def _staged(fix: Fix) -> Section:
    like_ms = fix.stages[0].latency_ms.estimate
    columns = (
        Column("", wordy=True),
        Column("time, ms", numeric=True),
        Column("speedup", numeric=True),
        Column("to standard", numeric=True),
        Column("accuracy", numeric=True),
        Column("size", numeric=True),
    )
    standard = (
        "standard",
        _bare_ms(fix.standard_latency_ms, like_ms),
        "",
        "1",
        _accuracy(fix.standard_accuracy),
        numbers.size(fix.standard_size_bytes),
    )
    rows = (*(_stage_row(stage, like_ms) for stage in fix.stages), Row(standard, "quiet"))
    legend = "speedup: over the baseline · to standard: time over the standard's"
    if fix.standard_accuracy is not None:
        legend += f" · accuracy: {fix.standard_accuracy.metric}, ± of its change to the standard"
    return Section((Table(columns, rows), Line(legend, tone="quiet")), title="Stage by stage", picture="stages")


def _stage_row(stage: StageResult, like_ms: float) -> Row:
    baseline = stage.name == "baseline"
    return Row(
        (
            STAGE_TITLES[stage.name],
            _bare_ms(stage.latency_ms, like_ms),
            "1" if baseline else numbers.plus_minus(stage.speedup_over_baseline, 2),
            numbers.plus_minus(stage.slowdown_to_standard, 2),
            _accuracy(stage.accuracy, stage.accuracy_change),
            numbers.size(stage.size_bytes),
        )
    )


def _bare_ms(interval: Interval, like_ms: float) -> str:
    return numbers.plus_minus(interval, numbers.ms_decimals(like_ms))


def _accuracy(accuracy: Accuracy | None, change: Interval | None = None) -> str:
    if accuracy is None:
        return numbers.UNKNOWN
    value = numbers.number(accuracy.value, 1)
    return value if change is None else f"{value} ± {numbers.half(change, 1)}"


def _choices(fix: Fix, *, full: bool) -> list[Section]:
    """What was tried, in the order of the stages; what was rejected for one and the same reason in one row."""
    columns = (Column(""), Column(""), Column(""), Column("worth", numeric=True), Column("", wordy=True))
    rows = []
    for stage in fix.stages:
        tried = [("kept", kept.remedy, _worth(kept.worth), kept.reason) for kept in stage.kept]
        tried += [("rejected", name, "", reason) for name, reason in _by_reason(stage.rejected, full=full)]
        for position, cells in enumerate(tried):
            title = "" if position else STAGE_TITLES[stage.name]
            rows.append(Row((title, *cells), "quiet" if cells[0] == "rejected" else "plain"))
    if not rows:
        return []
    legend = "worth: what the finished model would take longer without it"
    weighed = any(kept.worth is not None for stage in fix.stages for kept in stage.kept)
    lines = (Line(legend, tone="quiet"),) if weighed else ()
    return [Section((Table(columns, tuple(rows)), *lines), title="What was tried")]


def _by_reason(rejected: Sequence[Rejected], *, full: bool) -> list[tuple[str, str]]:
    """Remedies and reasons; of many with one reason the number, and their names only where there is room for them."""
    names: dict[str, list[str]] = {}
    for one in rejected:
        names.setdefault(one.reason, []).append(one.remedy)
    rows = []
    for reason, same in sorted(names.items(), key=lambda item: len(item[1]) > FEW):
        many = len(same) > FEW
        rows += [(f"{len(same)} others", f"{reason}: {', '.join(same)}" if full else reason)] if many else []
        rows += [] if many else [(name, reason) for name in same]
    return rows


def _worth(ratio: Interval | None) -> str:
    """A ratio of times as what is lost without a remedy."""
    if ratio is None:
        return ""
    percent = Interval(*(100 * (end - 1) for end in (ratio.estimate, ratio.low, ratio.high)))
    return f"{numbers.plus_minus(percent, 1)} %"


def _beside_article(fix: Fix) -> Section:
    """Shares of the baseline, since minutes on eight GPUs and milliseconds on this machine can't be compared."""
    columns = (
        Column("", wordy=True),
        Column("time", numeric=True),
        Column("article's", numeric=True),
        Column("accuracy", numeric=True),
        Column("article's", numeric=True),
        Column("size", numeric=True),
        Column("article's", numeric=True),
    )
    base, theirs = fix.stages[0], ARTICLE["baseline"]
    rows = []
    for stage in fix.stages:
        ours = (stage.latency_ms.estimate, stage.accuracy, stage.size_bytes)
        rows.append(_share_row(STAGE_TITLES[stage.name], ours, base, ARTICLE[stage.name], theirs))
    standard = (fix.standard_latency_ms.estimate, fix.standard_accuracy, fix.standard_size_bytes)
    rows.append(_share_row("standard", standard, base, ARTICLE_STANDARD, theirs))
    return Section((Table(columns, tuple(rows)),), title="Beside the article, in % of the baseline")


def _share_row(
    name: str, ours: tuple[float, Accuracy | None, int], base: StageResult, article: ArticleStage, theirs: ArticleStage
) -> Row:
    time_ms, accuracy, size_bytes = ours
    points = (accuracy.value, base.accuracy.value) if accuracy and base.accuracy else (None, None)
    cells = (
        _share(time_ms, base.latency_ms.estimate),
        _share(article.time_min, theirs.time_min),
        _share(*points),
        _share(article.accuracy, theirs.accuracy),
        _share(size_bytes, base.size_bytes),
        _share(article.size_gb, theirs.size_gb),
    )
    return Row((name, *cells))


def _share(part: float | None, whole: float | None) -> str:
    return numbers.percent(part / whole) if part is not None and whole else numbers.UNKNOWN
