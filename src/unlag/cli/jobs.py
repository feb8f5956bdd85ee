"""What a command does once its arguments are understood: work with a watcher, show, write, and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from unlag.cli import screen
from unlag.cli.options import Asked, Wanted
from unlag.cli.outputs import Outputs, check_folder, check_writable, write_whole
from unlag.cli.watcher import Watcher
from unlag.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from unlag.observe.evidence import EvidenceRecord
    from unlag.report.record import Record

Job = Callable[[], int]
"""Runs after parsing; gives the exit code."""


DEMO_BUDGET = 0.5
"""Points that the demo's result may lie below the standard: the default of --accuracy-budget."""


def compare(asked: Asked, outputs: Outputs, *, quiet: bool) -> int:
    """Measure, and say whether the variant lags."""
    from unlag import pipeline

    case = asked.case()
    outputs.check([case.standard.path, case.variant.path, case.workload])
    with Watcher(quiet=quiet) as watcher:
        record = pipeline.compare(case, watcher)
    return present(record, outputs, quiet=quiet)


def explain(asked: Asked, wanted: Wanted, outputs: Outputs, *, quiet: bool) -> int:
    """Measure, and say why the variant lags."""
    from unlag import pipeline
    from unlag.report.record import to_json

    case, extent, evidence = asked.case(), wanted.extent(), outputs.evidence
    outputs.check([case.standard.path, case.variant.path, case.workload])
    keep = None
    if evidence is not None:

        def keep(record: EvidenceRecord) -> None:
            write_whole(evidence, to_json(record))

    with Watcher(quiet=quiet) as watcher:
        record = pipeline.explain(case, watcher, extent=extent, keep=keep)
    return present(record, outputs, quiet=quiet)


def diagnose(path: Path, outputs: Outputs, *, quiet: bool) -> int:
    """Say what saved evidence suggests."""
    from unlag import pipeline
    from unlag.report.record import read_evidence

    outputs.check([str(path)])
    return present(pipeline.diagnose(read_evidence(path)), outputs, quiet=quiet)


def fix(asked: Asked, folder: Path, outputs: Outputs, *, quiet: bool, resume: bool) -> int:
    """Measure, explain, and make a model that does not lag."""
    from unlag import pipeline

    case = asked.case()
    outputs.check([case.standard.path, case.variant.path, case.workload])
    check_folder(folder, mark="run.json")
    with Watcher(quiet=quiet) as watcher:
        record = pipeline.fix(case, folder, watcher, resume=resume)
    return present(record, outputs, quiet=quiet, budget=case.accuracy_budget)


def demo(folder: Path, outputs: Outputs, *, quiet: bool) -> int:
    """The article's case from end to end."""
    from unlag import pipeline

    outputs.check()
    check_folder(folder)
    with Watcher(quiet=quiet) as watcher:
        record = pipeline.demo(folder, watcher)
    return present(record, outputs, quiet=quiet, budget=DEMO_BUDGET, beside_article=True)


def present(record: Record, outputs: Outputs, *, quiet: bool, budget: float = 0.0, beside_article: bool = False) -> int:
    """Show a record, then write its files: a full disk must not take the report away."""
    from unlag.cli.exit_codes import exit_code
    from unlag.report.pages import verdict_lines
    from unlag.report.to_text import TextLines, render

    if quiet:
        screen.show(TextLines(verdict_lines(record)))
    else:
        screen.show(render(record, beside_article=beside_article))
    outputs.write(record, beside_article=beside_article)
    return exit_code(record, budget)


def replay(path: Path, outputs: Outputs, *, quiet: bool, beside_article: bool) -> int:
    """Show a stored record again."""
    from unlag.report.record import read_record

    outputs.check([str(path)])
    record = read_record(path)
    if beside_article and record.kind != "fix":
        raise UsageError(f"{path} holds no fix but a record of kind {record.kind!r}", hint="leave --beside-article out")
    return present(record, outputs, quiet=quiet, beside_article=beside_article)


def show_environment(json: Path | None) -> int:
    """What can be read of this machine, and what to change on it."""
    from unlag.report.environment import environment_page, read_environment
    from unlag.report.record import to_json
    from unlag.report.to_text import TextPage

    if json:
        check_writable(json)
    environment = read_environment()
    screen.show(TextPage(environment_page(environment)))
    if json:
        write_whole(json, to_json(environment))
    return 0


def list_causes() -> int:
    """One line for each cause."""
    from unlag.causes.contract import find_causes
    from unlag.report.document import Column, Page, Row, Section, Table
    from unlag.report.to_text import TextPage

    columns = (Column("id"), Column("title", wordy=True), Column("dimension"), Column("affects"))
    rows = tuple(
        Row((cause.id, cause.title, cause.dimension, ", ".join(sorted(cause.affects, reverse=True))))
        for cause in find_causes()
    )
    screen.show(TextPage(Page("Causes", (Section((Table(columns, rows),)),))))
    return 0


def explain_cause(name: str) -> int:
    """The documentation of one cause, and its remedies."""
    from unlag.causes.contract import find_causes
    from unlag.report.catalogue import cause_page
    from unlag.report.to_text import TextPage

    known = {cause.id: cause for cause in find_causes()}
    if name not in known:
        raise UsageError(f"there is no cause {name!r}", hint=did_you_mean(name, known, "unlag causes lists them"))
    screen.show(TextPage(cause_page(known[name])))
    return 0
