"""Numbers and tables of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
from benchmarks.diagnosis.records import (
    Detected,
    Explained,
    Failure,
    Healthy,
    Job,
    Noise,
    Planted,
    Record,
    Run,
    explained_of,
)

BEST_RANKS = 2
"""A cause that was planted alone counts as hit where it is proven as the first or second one."""


class Hits(msgspec.Struct, frozen=True):
    """How many of how many."""

    count: int
    of: int

    def __str__(self) -> str:
        """Both numbers and the percentage."""
        return f"{self.count} of {self.of}" + (f" ({self.count / self.of:.0%})" if self.of else "")


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The published numbers. ``costing`` counts only causes that cost something on this machine."""

    hits: Hits
    hits_costing: Hits
    detected: Hits
    plant_alarms: int
    """Causes proven beside a single plant that nobody planted."""
    cost_error: float | None
    """Median over proven causes, planted alone."""
    unexplained: float | None
    """Median share of the gap, of causes planted alone."""
    twins_measured: Hits
    """Twins without a false alarm, of those that were explained."""
    twins_diagnosed: Hits
    same: Hits
    """Models against themselves without a false alarm."""
    combo_hits: Hits
    """Planted causes that were proven, of all in combinations."""
    combo_hits_costing: Hits
    combos_whole: Hits
    """Combinations of which every cause that costs something was proven."""
    combo_alarms: int
    combo_cost_error: float | None
    failures: int
    seconds: float


def summarize(records: Sequence[Record]) -> Summary:
    """Count."""
    single, combos = explained_of(records, "plants"), explained_of(records, "combos")
    detected = [record for record in records if isinstance(record, Detected)]
    whole = [all(p.proven for p in c.planted if p.costs(c.noise)) for c in combos if _costing([c])]
    return Summary(
        hits=_hits([is_hit(p) for c in single for p in c.planted]),
        hits_costing=_hits([is_hit(p) for p in _costing(single)]),
        detected=_hits([record.found for record in detected]),
        plant_alarms=sum(other.alarm for c in single for other in c.others),
        cost_error=_median(cost_errors(single)),
        unexplained=_median(c.unexplained_share for c in single),
        twins_measured=_silent(records, "twins", measured=True),
        twins_diagnosed=_silent(records, "twins", measured=False),
        same=_silent(records, "aa", measured=True),
        combo_hits=_hits([p.proven for c in combos for p in c.planted]),
        combo_hits_costing=_hits([p.proven for p in _costing(combos)]),
        combos_whole=_hits(whole),
        combo_alarms=sum(other.alarm for c in combos for other in c.others),
        combo_cost_error=_median(cost_errors(combos)),
        failures=sum(isinstance(record, Failure) for record in records),
        seconds=sum(record.seconds for record in records),
    )


def is_hit(planted: Planted) -> bool:
    """Found and proven, as the first or second cause."""
    return planted.proven and planted.rank is not None and planted.rank <= BEST_RANKS


def cost_errors(cases: Iterable[Explained]) -> list[float | None]:
    """Relative errors of the costs of causes that were proven."""
    return [p.cost_error(c.noise) for c in cases for p in c.planted if p.proven]


def _costing(cases: Iterable[Explained]) -> list[Planted]:
    return [p for c in cases for p in c.planted if p.costs(c.noise)]


def _hits(answers: Sequence[bool]) -> Hits:
    return Hits(sum(answers), len(answers))


def _silent(records: Sequence[Record], job: Job, *, measured: bool) -> Hits:
    asked = [r for r in records if isinstance(r, Healthy) and r.job == job and r.measured == measured]
    return _hits([not record.alarms for record in asked])


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def row_of(record: Record) -> str:
    """One case in a line, for the screen."""
    match record:
        case Explained():
            parts = [f"{p.id} {_status(p)} ({_costs(p)})" for p in record.planted]
            alarms = [f"FALSE ALARM {other.id} {other.share:.0%}" for other in record.others if other.alarm]
            text = f"{record.speed}, {record.accuracy}: " + "; ".join(parts + alarms)
        case Detected():
            text = ("found" if record.found else "NOT FOUND") + f", detector only ({record.note})"
        case Healthy():
            alarms = [f"FALSE ALARM {alarm.id} ({alarm.status}): {alarm.reason}" for alarm in record.alarms]
            text = "; ".join(alarms) or "no alarm"
            text += "" if record.measured else f", only diagnosed ({record.note})"
        case Failure():
            text = f"FAILED: {record.message}"
    return f"{record.key}: {text} · {record.seconds:.0f} s"


def lines_of(summary: Summary, run: Run) -> list[str]:
    """The summary in words."""
    s = summary
    return [
        f"On {run.host} with {run.runtime}; {run.rounds} rounds, seed {run.seed}.",
        f"Planted alone, found and proven as first or second cause: {s.hits}.",
        f"The same, of causes that cost something on this machine: {s.hits_costing}.",
        f"Detector only, found: {s.detected}.",
        f"Two or three at once, found and proven: {s.combo_hits}.",
        f"The same, of causes that cost something in company: {s.combo_hits_costing}.",
        f"Models with two or three of which nothing was missed: {s.combos_whole}.",
        f"False alarms beside a single plant: {s.plant_alarms}; beside two or three: {s.combo_alarms}.",
        f"Healthy twins without a false alarm: {s.twins_measured} explained, {s.twins_diagnosed} only diagnosed.",
        f"Models against themselves without a false alarm: {s.same}.",
        f"Median error of the cost: {_percent(s.cost_error)} alone, {_percent(s.combo_cost_error)} in company.",
        f"Median unexplained share of the gap, planted alone: {_percent(s.unexplained)}.",
        f"Failures: {s.failures}. Time: {s.seconds / 60:.0f} min.",
    ]


def markdown_of(run: Run, absent: Sequence[str] = ()) -> str:
    """The page for the docs: the summary, and one row a case.

    Args:
        run: what was measured.
        absent: causes of the catalogue that nothing plants.
    """
    records = sorted(run.records, key=lambda record: record.key)
    parts = ["\n".join(f"- {line}" for line in lines_of(summarize(records), run))]
    parts += [
        _section("Planted alone", PLANT_HEAD, [_plant_row(c) for c in explained_of(records, "plants")]),
        _section("Detector only", DETECTOR_HEAD, [_detector_row(r) for r in records if isinstance(r, Detected)]),
        _section("Planted together", COMBO_HEAD, [r for c in explained_of(records, "combos") for r in _combo_rows(c)]),
        _section("Healthy", HEALTHY_HEAD, [_healthy_row(r) for r in records if isinstance(r, Healthy)]),
        _section("Failures", FAILURE_HEAD, [[r.key, r.message] for r in records if isinstance(r, Failure)]),
    ]
    if absent:
        parts.append(f"Causes that nothing plants: {', '.join(absent)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


PLANT_HEAD = [
    *("Cause", "Model", "Places", "Speed", "Accuracy", "Answer"),
    *("Planted", "Measured", "Error", "Unexplained", "Others proven", "Time"),
]
DETECTOR_HEAD = ["Cause", "Answer", "Why nothing was measured"]
COMBO_HEAD = ["Model", "Planted together", "Cause", "Answer", "Planted", "Measured", "Error", "Others proven"]
HEALTHY_HEAD = ["Pair", "How", "False alarms"]
FAILURE_HEAD = ["Case", "Message"]


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return f"### {title}\n\n" + "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _plant_row(case: Explained) -> list[str]:
    planted = case.planted[0]
    return [
        planted.id,
        case.model,
        str(planted.places),
        case.speed,
        case.accuracy,
        _answer(planted, case.noise),
        *_cost_cells(planted, case.noise),
        _percent(case.unexplained_share),
        _others(case),
        f"{case.seconds:.0f} s",
    ]


def _combo_rows(case: Explained) -> list[list[str]]:
    together = " + ".join(planted.id for planted in case.planted)
    return [
        [
            case.model,
            together,
            planted.id,
            _answer(planted, case.noise),
            *_cost_cells(planted, case.noise),
            _others(case),
        ]
        for planted in case.planted
    ]


def _detector_row(record: Detected) -> list[str]:
    return [record.cause, "found" if record.found else f"not found: {record.reason}", record.note]


def _healthy_row(record: Healthy) -> list[str]:
    how = "explained" if record.measured else f"diagnosed: {record.note}"
    alarms = "; ".join(f"{alarm.id} ({alarm.status}: {alarm.reason})" for alarm in record.alarms)
    return [record.key, how, alarms or "none"]


def _status(planted: Planted) -> str:
    return f"proven #{planted.rank}" if planted.rank is not None else planted.status.replace("_", " ")


def _answer(planted: Planted, noise: Noise) -> str:
    """What unlag said; the reason where it is no proof; and whether there was anything to prove."""
    nothing = "" if planted.costs(noise) else " (no cost here)"
    return _status(planted) + nothing + ("" if planted.proven else f": {planted.reason}")


def _costs(planted: Planted) -> str:
    planted_text, measured_text = _cost_texts(planted)
    return f"planted {planted_text}, measured {measured_text}"


def _cost_cells(planted: Planted, noise: Noise) -> list[str]:
    error = planted.cost_error(noise) if planted.proven else None
    return [*_cost_texts(planted), _percent(error)]


def _cost_texts(planted: Planted) -> tuple[str, str]:
    """Planted and measured cost, in time and in points."""
    time = planted.planted_ms.mean if planted.planted_ms else None
    points = planted.planted_points.mean if planted.planted_points else None
    return _amounts(time, points), _amounts(planted.measured_ms, planted.measured_points)


def _amounts(time_ms: float | None, points: float | None) -> str:
    texts = [] if time_ms is None else [f"{time_ms:.3g} ms"]
    texts += [] if points is None else [f"{points:.2f} points"]
    return ", ".join(texts) or "–"


def _others(case: Explained) -> str:
    """Proven causes that nobody planted."""
    texts = []
    for other in case.others:
        kind = " (false alarm)" if other.alarm else " (a consequence)" if other.consequence else ""
        texts.append(f"{other.id} {other.share:.0%}{kind}")
    return "; ".join(texts) or "none"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
