"""Charts of a record: the slowdown against the noise, rounds, causes that add up to the gap, and the stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from unlag.measure.comparison import Comparison
from unlag.measure.statistics import Interval, band_of
from unlag.proof.explanation import Explanation
from unlag.report import numbers
from unlag.report.explanation_page import accuracy_causes, speed_causes
from unlag.report.fix_page import ARTICLE, STAGE_TITLES
from unlag.report.svg import Drawing, Scale, room_for, shortened
from unlag.stages.fixed import Fix

WIDTH = 760
ROW = 26
_CONTENDERS = ("standard", "control", "variant")
_FEWEST_TURNS = 2


def verdict_picture(comparison: Comparison) -> Markup:
    """The slowdown with its interval, over the band that noise alone can fill."""
    slowdown, (band_low, band_high) = comparison.slowdown, band_of(comparison.noise)
    ends = [slowdown.estimate, slowdown.low, slowdown.high, band_low, band_high, 1.0]
    finite = [end for end in ends if math.isfinite(end)]
    margin = 0.08 * (max(finite) - min(finite) or 0.1)
    scale = Scale(min(finite) - margin, max(finite) + margin, 20, WIDTH - 20)
    drawing = Drawing(WIDTH, 104, f"slowdown {numbers.ratio_of(slowdown)}")
    drawing.axis(scale, 66, 14, "×")
    left, right = scale(band_low), scale(band_high)
    drawing.rectangle(left - 2, 14, right - left + 4, 52, "noise", f"noise alone: {band_low:.3f} to {band_high:.3f}")
    drawing.line(scale(1.0), 14, scale(1.0), 66, "one")
    drawing.line(scale(slowdown.low), 40, scale(slowdown.high), 40, "interval")
    drawing.dot(scale(slowdown.estimate), 40, comparison.verdict.speed, numbers.ratio_of(slowdown), 6)
    drawing.text(WIDTH / 2, 98, "time of the variant over time of the standard; gray: what noise alone gives", "middle")
    return drawing.render()


def rounds_picture(comparison: Comparison) -> Markup | None:
    """The median of every turn, relative to its contender's own: launches, drift and disturbances can be seen."""
    names = [name for name in _CONTENDERS if name in comparison.samples]
    turns = {name: comparison.samples[name].turns for name in names}
    medians = {name: [median(turn.times_ns) / 1e6 for turn in turns[name]] for name in names}
    names = [name for name in names if len(medians[name]) >= _FEWEST_TURNS]
    if not names:
        return None
    centers = {name: median(medians[name]) for name in names}
    shares = {name: [100 * (value / centers[name] - 1) for value in medians[name]] for name in names}
    widest = max(1.0, *(abs(share) for name in names for share in shares[name]))
    scale = Scale(-1.05 * widest, 1.05 * widest, 90, WIDTH - 100)
    height = len(names) * ROW + 58
    drawing = Drawing(WIDTH, height, "median time of each round by contender")
    drawing.axis(scale, height - 42, 6, " %")
    for row, name in enumerate(names):
        y = 6 + (row + 0.5) * ROW
        drawing.text(80, y + 4, name, "end")
        drawing.text(WIDTH - 90, y + 4, numbers.milliseconds(centers[name]), "start", "value")
        for turn, value, share in zip(turns[name], medians[name], shares[name], strict=True):
            state = f", disturbed: {turn.disturbed}" if turn.disturbed else ""
            hint = f"round {turn.round + 1}: {numbers.milliseconds(value)}{state}"
            apart = (turn.round % 5 - 2) * 2.5
            drawing.dot(scale(share), y + apart, "disturbed" if turn.disturbed else f"of-{name}", hint)
    caption = "each round's median against the contender's own; hollow: disturbed, measured again"
    drawing.text(WIDTH / 2, height - 6, caption, "middle")
    return drawing.render()


@dataclass(frozen=True)
class _Step:
    """A bar of a waterfall."""

    label: str
    amount: float
    kind: str
    shown: str
    total: bool = False


def causes_picture(explanation: Explanation) -> Markup | None:
    """From the standard's time, cause by cause, to the variant's."""
    reconciliation = explanation.reconciliation
    if reconciliation is None:
        return None
    gap = reconciliation.gap_ms.estimate
    standard = explanation.comparison.standard.latency_ms.median
    steps = [_Step("standard", standard, "whole", numbers.milliseconds(standard), total=True)]
    steps += [
        _Step(cause.title, cause.cost_ms.estimate, "cost", numbers.milliseconds_of(cause.cost_ms, gap))
        for cause in speed_causes(explanation)
        if cause.cost_ms is not None
    ]
    steps += _rest(reconciliation.interaction_ms, reconciliation.unexplained_ms, gap)
    steps.append(_Step("variant", standard + gap, "whole", numbers.milliseconds(standard + gap), total=True))
    return _waterfall(steps, "where the milliseconds go")


def _rest(interaction: Interval, unexplained: Interval, like: float) -> list[_Step]:
    return [
        _Step("interaction", interaction.estimate, "rest", numbers.milliseconds_of(interaction, like)),
        _Step("unexplained", unexplained.estimate, "rest", numbers.milliseconds_of(unexplained, like)),
    ]


def losses_picture(explanation: Explanation) -> Markup | None:
    """Points lost, cause by cause."""
    reconciliation = explanation.accuracy_reconciliation
    if reconciliation is None:
        return None
    steps = []
    for cause in accuracy_causes(explanation):
        if cause.accuracy_cost is not None:
            shown = numbers.points_of(cause.accuracy_cost)
            steps.append(_Step(cause.title, cause.accuracy_cost.estimate, "cost", shown))
    for label, part in (("interaction", reconciliation.interaction), ("unexplained", reconciliation.unexplained)):
        steps.append(_Step(label, part.estimate, "rest", numbers.points_of(part)))
    loss = reconciliation.loss
    steps.append(_Step("lost in all", loss.estimate, "whole", numbers.points_of(loss), total=True))
    return _waterfall(steps, "where the points go")


def _waterfall(steps: list[_Step], title: str) -> Markup:
    """Bars that begin where the one above ended; totals begin at zero."""
    spans = []
    at = 0.0
    for step in steps:
        begin = 0.0 if step.total else at
        at = begin + step.amount
        spans.append((begin, at))
    ends = [end for span in spans for end in span]
    room = room_for([step.label for step in steps])
    scale = Scale(min(0.0, *ends), max(0.0, *ends) or 1.0, room, WIDTH - 110)
    drawing = Drawing(WIDTH, len(steps) * ROW + 12, title)
    for row, (step, (begin, end)) in enumerate(zip(steps, spans, strict=True)):
        y = 6 + row * ROW
        kind = "gain" if step.kind == "cost" and step.amount < 0 else step.kind
        drawing.text(room - 8, y + 16, shortened(step.label, room), "end")
        drawing.rectangle(scale(begin), y + 3, scale(end) - scale(begin), ROW - 8, kind, f"{step.label}: {step.shown}")
        drawing.text(max(scale(begin), scale(end)) + 6, y + 16, step.shown, "start", "value")
        if row + 1 < len(steps):
            drawing.line(scale(end), y + ROW - 5, scale(end), y + ROW + 3, "link")
    return drawing.render()


def stages_picture(fix: Fix, *, beside_article: bool) -> Markup:
    """Time, accuracy and size of every stage as shares of the baseline, beside the article's where asked for."""
    base = fix.stages[0]
    panels = [("time", [(s.name, s.latency_ms.estimate / base.latency_ms.estimate) for s in fix.stages])]
    if base.accuracy is not None and base.accuracy.value:
        shares = [(s.name, s.accuracy.value / base.accuracy.value) for s in fix.stages if s.accuracy is not None]
        panels.append(("accuracy", shares))
    if base.size_bytes:
        panels.append(("size", [(s.name, s.size_bytes / base.size_bytes) for s in fix.stages]))
    theirs = {
        "time": lambda name: ARTICLE[name].time_min / ARTICLE["baseline"].time_min,
        "accuracy": lambda name: ARTICLE[name].accuracy / ARTICLE["baseline"].accuracy,
        "size": lambda name: (ARTICLE[name].size_gb or 0.0) / (ARTICLE["baseline"].size_gb or 1.0),
    }
    room = room_for(list(STAGE_TITLES.values()))
    drawing = Drawing(WIDTH, len(fix.stages) * ROW + 46, "stages as shares of the baseline")
    across = (WIDTH - room) / len(panels)
    for row, stage in enumerate(fix.stages):
        drawing.text(room - 8, 22 + row * ROW + 17, STAGE_TITLES[stage.name], "end")
    for column, (what, shares) in enumerate(panels):
        left = room + column * across
        most = max([share for _, share in shares] + [theirs[what](name) for name, _ in shares if beside_article])
        scale = Scale(0.0, most, left, left + across - 60)
        drawing.text(left, 14, what, "start", "value")
        for row, (name, share) in enumerate(shares):
            y = 22 + row * ROW
            drawing.rectangle(left, y + 4, scale(share) - left, ROW - 10, f"panel-{what}", numbers.percent(share))
            end = scale(share)
            if beside_article:
                mark = scale(theirs[what](name))
                drawing.line(mark, y + 1, mark, y + ROW - 3, "article")
                end = mark if -6 < mark - end < 45 else end
            drawing.text(end + 5, y + 16, numbers.percent(share), "start", "value")
    note = "per cent of the baseline" + ("; black mark: the article's" if beside_article else "")
    drawing.text(WIDTH / 2, len(fix.stages) * ROW + 42, note, "middle")
    return drawing.render()
