"""What a comparison says, in words: the verdict first, then the numbers that it rests on."""

from __future__ import annotations

from unlag.errors import Missing
from unlag.measure.comparison import Comparison, Measured
from unlag.measure.statistics import band_of
from unlag.model.variant import parse_spec
from unlag.report import numbers
from unlag.report.document import Column, Line, Page, Row, Section, Table, Tone

_SPEED_TONES: dict[str, Tone] = {"slower": "bad", "faster": "good", "same": "plain", "inconclusive": "unsure"}
_ACCURACY_TONES: dict[str, Tone] = {"worse": "bad", "better": "good"}


def comparison_page(comparison: Comparison) -> Page:
    """The whole report of a comparison."""
    sections = [
        Section(headline(comparison), picture="verdict"),
        Section((_sides(comparison),), title="What was measured"),
        *([_shapes(comparison)] if comparison.other_shapes else []),
        Section(tuple(_circumstances(comparison)), title="How", picture="rounds"),
        *warnings_section(comparison.warnings),
    ]
    return Page(" against ".join(names(comparison)), tuple(sections))


def names(comparison: Comparison) -> tuple[str, str]:
    """Variant and standard by file name and options, which may be what makes the difference; else the whole specs."""
    variant, standard = parse_spec(comparison.variant.spec), parse_spec(comparison.standard.spec)
    told_apart = variant.name != standard.name or variant == standard
    return (variant.name, standard.name) if told_apart else (variant.spec, standard.spec)


def headline(comparison: Comparison, subject: str | None = None, *, advice: bool = True) -> tuple[Line, ...]:
    """The verdict in one or two sentences, and what to do where there is none; no ``advice`` where nothing is measured.

    A model against itself is said to be that.
    """
    lines = [speed_line(comparison, subject), accuracy_line(comparison)]
    if comparison.standard.spec == comparison.variant.spec:
        lines.append(Line("both are the same file with the same options", tone="quiet"))
    if comparison.verdict.speed == "inconclusive" and advice:
        lines += _advice(comparison)
    return tuple(lines)


def speed_line(comparison: Comparison, subject: str | None = None) -> Line:
    """The verdict on speed with its times, interval and noise floor."""
    variant, standard = names(comparison)
    variant = subject or variant
    slowdown, verdict = comparison.slowdown, comparison.verdict.speed
    sentence = {
        "slower": f"{variant} is {numbers.factor(slowdown.estimate)} slower than {standard}",
        "faster": f"{variant} is {numbers.factor(numbers.inverse(slowdown).estimate)} faster than {standard}",
        "same": f"{variant} is as fast as {standard}",
        "inconclusive": f"inconclusive: {variant} may be slower or faster than {standard}, or neither",
    }[verdict]
    shown = numbers.inverse(slowdown) if verdict == "faster" else slowdown
    times = [numbers.milliseconds(side.latency_ms.median) for side in (comparison.variant, comparison.standard)]
    aside = (
        f"{times[0]} against {times[1]} · interval {numbers.ratio_range(shown)}"
        f" · noise floor {numbers.noise_floor(comparison.noise)}"
    )
    return Line(sentence, aside, _SPEED_TONES[verdict], strong=True)


def accuracy_line(comparison: Comparison) -> Line:
    """The verdict on accuracy, or how near the outputs are where there are no labels."""
    verdict, change = comparison.verdict.accuracy, comparison.accuracy_change
    if verdict == "not_measured" or change is None:
        return Line("accuracy was not measured: this workload has no labels", _agreement(comparison))
    joint = "but" if {comparison.verdict.speed, verdict} in ({"faster", "worse"}, {"slower", "better"}) else "and"
    amount = numbers.number(abs(change.estimate), 1)
    sentence = {
        "worse": f"{joint} {amount} points less accurate",
        "better": f"{joint} {amount} points more accurate",
        "same": f"{joint} as accurate, as far as this workload can tell",
    }[verdict]
    aside = f"interval {numbers.points_range(change)}"
    variant, standard = comparison.variant.accuracy, comparison.standard.accuracy
    if variant and standard:
        values = f"{numbers.number(variant.value, 1)} against {numbers.number(standard.value, 1)}"
        aside = f"{variant.metric} {values} · {aside}"
    return Line(sentence, aside, _ACCURACY_TONES.get(verdict, "plain"), strong=True)


def _agreement(comparison: Comparison) -> str:
    agreement = comparison.agreement
    if agreement is None:
        return ""
    if agreement.max_error == 0:
        return "agreement of outputs: identical"
    parts = [
        f"agreement of outputs: cosine {agreement.cosine:.6f}",
        f"largest error {agreement.max_error:.3g} ({_percent(agreement.relative_error)} of the largest value)",
    ]
    if agreement.top1 is not None:
        parts.append(f"same winner in {numbers.number(100 * agreement.top1, 1)} % of rows")
    return " · ".join(parts)


def _percent(share: float) -> str:
    """Two digits, and no exponent above one."""
    return numbers.percent(share) if share >= 1 else f"{100 * share:.2g} %"


def _advice(comparison: Comparison) -> list[Line]:
    """Why there is no verdict, and what gives one."""
    low, high = (numbers.number(end, 3) for end in band_of(comparison.noise))
    lines = [
        Line(f"A verdict needs the interval to lie outside {low}–{high}, or wholly inside it.", tone="quiet"),
        Line(f"Give it more rounds than {comparison.rounds}: --rounds 15 --max-rounds 45", tone="quiet"),
    ]
    if comparison.disturbed_rounds:
        count = f"{comparison.disturbed_rounds} rounds were" if comparison.disturbed_rounds > 1 else "1 round was"
        lines.append(Line(f"{count} disturbed: stop other work first; unlag env says what else helps", tone="quiet"))
    else:
        lines.append(Line("Make the machine quieter: unlag env says how", tone="quiet"))
    return lines


def _sides(comparison: Comparison) -> Table:
    standard, variant = comparison.standard, comparison.variant
    columns = (Column("", wordy=True), Column("standard", numeric=True), Column("variant", numeric=True))
    both = (standard, variant)
    rows = [
        ("time of a run", *(f"{_latency(side)}" for side in both)),
        ("interval", *(_latency_range(side) for side in both)),
        ("load", *(numbers.milliseconds(side.load_ms) for side in both)),
        ("first run", *(numbers.milliseconds(side.first_run_ms) for side in both)),
        ("warm-up", *(f"{side.warmup_runs} runs" + ("" if side.steady else ", never steady") for side in both)),
        ("accuracy", *(_accuracy(side) for side in both)),
        ("size on disk", *(numbers.size(side.size_bytes) for side in both)),
        ("peak memory", *(numbers.size(side.peak_memory_bytes) for side in both)),
    ]
    if not any(isinstance(side.placement, Missing) for side in both):
        rows.append(("runs on", *(_placement(side) for side in both)))
    return Table(columns, tuple(Row(row) for row in rows))


def _latency(side: Measured) -> str:
    return numbers.milliseconds(side.latency_ms.median)


def _latency_range(side: Measured) -> str:
    latency = side.latency_ms
    decimals = numbers.ms_decimals(latency.median) + 1
    return f"{numbers.number(latency.low, decimals)}–{numbers.number(latency.high, decimals)} ms"


def _accuracy(side: Measured) -> str:
    return numbers.UNKNOWN if side.accuracy is None else numbers.number(side.accuracy.value, 2)


def _placement(side: Measured) -> str:
    if isinstance(side.placement, Missing):
        return numbers.UNKNOWN
    nodes = side.placement.nodes
    return ", ".join(f"{name.removesuffix('ExecutionProvider')} ({count})" for name, count in nodes.items())


def _shapes(comparison: Comparison) -> Section:
    columns = (
        Column("shape", wordy=True),
        Column("standard", numeric=True),
        Column("variant", numeric=True),
        Column("slowdown", numeric=True),
        Column("verdict"),
    )
    rows = tuple(
        Row(
            (
                each.shape,
                _latency(each.standard),
                _latency(each.variant),
                numbers.ratio_of(each.slowdown),
                each.verdict.speed,
            ),
            _SPEED_TONES[each.verdict.speed],
        )
        for each in (comparison, *comparison.other_shapes)
    )
    return Section((Table(columns, rows),), title="By shape")


def _circumstances(comparison: Comparison) -> list[Line]:
    rounds = f"{comparison.rounds} rounds count"
    if comparison.disturbed_rounds:
        rounds += f", {comparison.disturbed_rounds} disturbed"
    runs = sum(len(turn.times_ns) for sample in comparison.samples.values() for turn in sample.turns)
    workload = f"{comparison.workload} at {comparison.shape}"
    return [
        Line(f"{workload} · {rounds} · {runs} timed runs", tone="quiet"),
        Line(machine(comparison), tone="quiet"),
    ]


def machine(comparison: Comparison) -> str:
    """The machine in a few words."""
    host = comparison.host
    model = host.cpu.architecture if isinstance(host.cpu.model, Missing) else host.cpu.model
    cores = "1 usable core" if host.usable_cores == 1 else f"{host.usable_cores} usable cores"
    return f"{model} · {cores} · {host.system.os}"


def warnings_section(warnings: tuple[str, ...]) -> list[Section]:
    """The warnings, if there are any."""
    if not warnings:
        return []
    return [Section(tuple(Line(f"warning: {warning}", tone="unsure") for warning in warnings))]
