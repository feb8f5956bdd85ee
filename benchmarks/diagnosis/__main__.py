"""unlag's hit rate: causes planted in real models, healthy twins, models against themselves, several causes at once.

    python -m benchmarks.diagnosis [--jobs plants,twins,aa,combos] [--only ID,...] [--model NAME] [--json FILE]

Prints a line a case, then the summary. With --json every case is kept as soon as it is there, so that an interrupted
run goes on with --resume. Everything takes hours; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.diagnosis.cases import (
    Settings,
    Task,
    explain_combo,
    explain_plant,
    explain_same,
    explain_twin,
    run_task,
    works_together,
)
from benchmarks.diagnosis.models import MAKERS, RealModel, open_models
from benchmarks.diagnosis.plants import Plant, causes_without_plant, choose_combos, fit, read_zoo
from benchmarks.diagnosis.records import JOBS, Failure, Job, Record, Run, read_run, write_run
from benchmarks.diagnosis.summary import lines_of, markdown_of, row_of, summarize

from unlag.measure.host import read_host


def main() -> int:
    """Run what is asked for."""
    arguments = _arguments()
    plants, broken = read_zoo(arguments.only)
    unknown = set(arguments.only) - {plant.id for plant in plants} - set(broken)
    if unknown:
        print(f"the zoo has no {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    run = _opened(arguments)
    if run is None:
        print(f"{arguments.json} is there; go on with --resume, or name another file", file=sys.stderr)
        return 2
    for name, message in broken.items():
        run = run.with_record(Failure(key=f"zoo/{name}", job="plants", message=message))
        print(f"zoo/{name}: FAILED: {message}", flush=True)
    settings = Settings(arguments.rounds, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="unlag-diagnosis-") as name:
        folder = Path(name)
        models = open_models(folder, arguments.model)
        tasks = list(_tasks(arguments, plants, models, settings, folder))
        try:
            run = _run_all(tasks, run, folder, arguments.json)
        except KeyboardInterrupt:
            print("interrupted" + ("; go on with --resume" if arguments.json else ""), flush=True)
            run = read_run(arguments.json) if arguments.json and arguments.json.exists() else run
    print("\n" + "\n".join(lines_of(summarize(run.records), run)))
    if arguments.markdown:
        arguments.markdown.write_text(markdown_of(run, causes_without_plant()), "utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.diagnosis", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=_names, default=JOBS, help=f"some of {','.join(JOBS)}")
    parser.add_argument("--only", type=_names, default=(), metavar="ID,...", help="these causes only")
    parser.add_argument("--model", type=_names, default=(), metavar="NAME", help=f"some of {','.join(MAKERS)}")
    parser.add_argument("--combos", type=int, default=4, metavar="N", help="combinations for each model")
    parser.add_argument("--rounds", type=int, default=5, help="undisturbed rounds that each contest wants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every record there")
    parser.add_argument("--resume", action="store_true", help="go on with --json FILE; failed cases are tried again")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write summary and tables there")
    arguments = parser.parse_args()
    for what, given, known in (("job", arguments.jobs, JOBS), ("model", arguments.model, tuple(MAKERS))):
        if set(given) - set(known):
            parser.error(f"no such {what}; there are {', '.join(known)}")
    if arguments.resume and not arguments.json:
        parser.error("--resume needs --json FILE")
    return arguments


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _opened(arguments: argparse.Namespace) -> Run | None:
    """A new run or the one to go on with; nothing where a file would be lost."""
    if arguments.json and arguments.json.exists():
        return read_run(arguments.json) if arguments.resume else None
    cpu = read_host().cpu
    return Run(
        host=f"{cpu.model}, {cpu.logical_cores} logical cores",
        runtime=f"onnxruntime {importlib.metadata.version('onnxruntime')}",
        seed=arguments.seed,
        rounds=arguments.rounds,
    )


def _tasks(
    arguments: argparse.Namespace,
    plants: Sequence[Plant],
    models: Sequence[RealModel],
    settings: Settings,
    folder: Path,
) -> Iterator[Task]:
    """Every case of the wanted jobs, in the order of the jobs."""
    jobs: Collection[Job] = arguments.jobs
    if "plants" in jobs:
        for plant in plants:
            yield Task(f"plants/{plant.id}", "plants", partial(explain_plant, plant, models, settings))
    if "twins" in jobs:
        for plant in plants:
            yield Task(f"twins/{plant.id}", "twins", partial(explain_twin, plant, settings))
    if "aa" in jobs:
        for model in models:
            yield Task(f"aa/{model.name}", "aa", partial(_same, model, settings))
    if "combos" in jobs:
        for model in models:
            for combo in _combos(plants, model, arguments.combos, settings, folder):
                key = f"combos/{model.name}/{'+'.join(plant.id for plant in combo)}"
                yield Task(key, "combos", partial(explain_combo, combo, model, settings))


def _same(model: RealModel, settings: Settings, _folder: Path) -> Record:
    return explain_same(model, settings)


def _combos(
    plants: Sequence[Plant], model: RealModel, count: int, settings: Settings, folder: Path
) -> list[tuple[Plant, ...]]:
    print(f"choosing combinations for {model.name}", flush=True)
    fitting = [plant for plant in plants if fit(plant, model.path).places > 0]
    chosen = choose_combos(fitting, lambda some: works_together(some, model, settings, folder), count, settings.seed)
    print(f"  {len(fitting)} causes fit; {len(chosen)} of {count} combinations found", flush=True)
    return chosen


def _run_all(tasks: Sequence[Task], run: Run, folder: Path, kept: Path | None) -> Run:
    """Run the cases that are not done yet, each in a folder of its own that is gone afterwards."""
    done = run.done()
    left = [task for task in tasks if task.key not in done]
    begin = time.perf_counter()
    for number, task in enumerate(left, 1):
        with tempfile.TemporaryDirectory(dir=folder) as own:
            record = run_task(task, Path(own))
        run = run.with_record(record)
        if kept:
            write_run(run, kept)
        minutes = (time.perf_counter() - begin) / number * (len(left) - number) / 60
        print(f"[{number}/{len(left)}, about {minutes:.0f} min left] {row_of(record)}", flush=True)
    return run


if __name__ == "__main__":
    sys.exit(main())
