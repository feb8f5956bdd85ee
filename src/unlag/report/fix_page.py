"""What a fix says: the explanation, the staged table, what was kept and what not, and how to load the result."""

from __future__ import annotations

from dataclasses import dataclass

from unlag.measure.comparison import Accuracy
from unlag.measure.statistics import Interval
from unlag.report import numbers
from unlag.report.comparison_page import headline, names, warnings_section
from unlag.report.document import Column, Command, Line, Page, Row, Section, Table
from unlag.report.explanation_page import cause_sections
from unlag.stages.fixed import Fix, StageResult

STAGE_TITLES = {
    "baseline": "Baseline",
    "quantization": "Quantization tuned",
    "graph": "Graph restructured",
    "hardware": "Hardware-optimized",
}


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
    before = fix.explanation.comparison
    notes = [Line(note, strong=True) for note in fix.notes]
    sections = [
        Section(headline(before), title="Before", picture="verdict"),
        *cause_sections(fix.explanation, full=full),
        Section((*notes, *headline(fix.result, "the fixed model")), title="After"),
        _staged(fix),
        *_choices(fix),
        *([_beside_article(fix)] if beside_article else []),
        *warnings_section((*before.warnings, *fix.explanation.warnings, *fix.result.warnings)),
        Section((Line(f"The fixed model is in {fix.output}"), Command("Load it", f"unlag.load({fix.output!r})"))),
    ]
    title = "{} against {}, fixed".format(*names(before))
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


def _choices(fix: Fix) -> list[Section]:
    """Every remedy that was tried, in the order of the stages."""
    columns = (Column(""), Column(""), Column(""), Column("", wordy=True))
    rows = []
    for stage in fix.stages:
        tried = [("kept", kept.remedy, kept.reason) for kept in stage.kept]
        tried += [("rejected", rejected.remedy, rejected.reason) for rejected in stage.rejected]
        for position, (outcome, remedy, reason) in enumerate(tried):
            title = "" if position else STAGE_TITLES[stage.name]
            rows.append(Row((title, outcome, remedy, reason), "quiet" if outcome == "rejected" else "plain"))
    return [Section((Table(columns, tuple(rows)),), title="What was tried")] if rows else []


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
