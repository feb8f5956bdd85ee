"""The program: compare, explain and fix, each as the list of its steps. Each step hands on a frozen value."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unlag import assets
from unlag.errors import Missing, NonfiniteError, UsageError
from unlag.measure import compare as measuring
from unlag.measure.bench import Bench, first_shape, inspect, open_bench
from unlag.measure.comparison import Comparison
from unlag.measure.progress import Progress, silent
from unlag.measure.throughput import Crew
from unlag.model.case import Case
from unlag.model.deployment import DESCRIPTION, MODEL, Made, deploy, read_deployment
from unlag.model.draft import Observed
from unlag.model.variant import Variant
from unlag.observe.evidence import EvidenceRecord
from unlag.observe.gather import observe
from unlag.observe.nonfinite import where_nonfinite
from unlag.proof.explain import Extent, diagnosis, explain_evidence, nothing_to_explain
from unlag.proof.explanation import Explanation
from unlag.report.folder_note import folder_note
from unlag.report.record import to_json
from unlag.report.to_html import render as render_html
from unlag.stages.fix import Fixed, fix_variant, for_target
from unlag.stages.fixed import Fix
from unlag.stages.journal import Journal
from unlag.stages.npu import fix_for_npu
from unlag.stages.start import keep_start, open_journal, read_start

if TYPE_CHECKING:
    from unlag.measure.compare import Compared

DEMO_WORKLOAD = "stsb"
QUICK_ROUNDS = 3

RECORD, REPORT, NOTE = "run.json", "report.html", "README.md"
WRITTEN = frozenset({MODEL, DESCRIPTION, RECORD, REPORT, NOTE})
"""What a fix puts into its folder, and may replace there, besides external data."""


def compare(case: Case, progress: Progress = silent) -> Comparison:
    """Case -> Comparison."""
    return measuring.compare(case, progress)


Keep = Callable[[EvidenceRecord], None]
"""What is done with the evidence as soon as it is there."""


def explain(
    case: Case, progress: Progress = silent, *, extent: Extent | None = None, keep: Keep | None = None
) -> Explanation:
    """Case -> Comparison -> Evidence -> findings -> proofs -> Explanation."""
    if extent is not None and extent.quick:
        rounds = min(QUICK_ROUNDS, case.rounds)
        case = msgspec.structs.replace(case, rounds=rounds, max_rounds=min(2 * rounds, case.max_rounds))
    bench = open_bench(case, first_shape(case), progress)
    inspect(case.variant)
    return _explain(bench, extent, keep)[1]


def diagnose(record: EvidenceRecord) -> Explanation:
    """Evidence -> findings -> Explanation, without measuring: what is found is suspected."""
    return diagnosis(record.comparison, record.evidence, replayed=True)


def _explain(
    bench: Bench, extent: Extent | None = None, keep: Keep | None = None
) -> tuple[Compared, Explanation, Observed]:
    begin, end = (0.5, 0.9) if extent is not None and extent.quick else (0.2, 0.3)
    with _locating_nonfinite(bench):
        compared = measuring.compare_at(bench.within(0.0, begin))
    evidence = observe(bench.within(begin, end), compared.comparison)
    if extent is not None and extent.claim is not None:
        evidence = msgspec.structs.replace(evidence, claim=extent.claim)
    if keep is not None:
        keep(EvidenceRecord(comparison=compared.comparison, evidence=evidence))
    return compared, explain_evidence(bench.within(end, 1.0), compared, evidence, extent), evidence.observed


@contextlib.contextmanager
def _locating_nonfinite(bench: Bench) -> Iterator[None]:
    """Where outputs are NaN or infinite nothing can be compared; say at least which tensor was the first."""
    try:
        yield
    except NonfiniteError as error:
        place = where_nonfinite(bench)
        raise NonfiniteError(error.message, place or error.hint) from error


def fix(
    case: Case, output: Path, progress: Progress = silent, *, beside_article: bool = False, resume: bool = False
) -> Fix:
    """Case -> Explanation -> stages -> a folder that ``load`` opens, whose report may show the article's table too.

    With ``resume`` it goes on from what an interrupted fix of the same models on this machine has measured.

    Raises:
        UsageError: the output folder holds something else, or can't be written; nothing is left half-written.
    """
    case = for_target(case)
    with _staging(output) as folder:
        bench = open_bench(case, first_shape(case), progress)
        inspect(case.variant)
        journal = open_journal(bench, resume=resume)
        if journal.steps:
            progress(f"going on from {journal.steps} results of an interrupted fix")
        if case.target == "npu":
            return _fix_for_npu(bench, folder, output, journal)
        compared, explanation, observed = _explained(bench.within(0.0, 0.45), journal)
        with tempfile.TemporaryDirectory(prefix="unlag-") as plans:
            fixed = fix_variant(
                bench.within(0.45, 1.0), compared, explanation, Path(plans), output, observed=observed, journal=journal
            )
            _write_output(folder, bench, fixed, beside_article=beside_article)
    journal.drop()
    return fixed.record


def _fix_for_npu(bench: Bench, folder: Path, output: Path, journal: Journal) -> Fix:
    """Another way than the stages: nothing is timed, since there is no device."""
    with tempfile.TemporaryDirectory(prefix="unlag-") as plans:
        fixed = fix_for_npu(bench, Path(plans), output, journal)
        _write_output(folder, bench, fixed, beside_article=False)
    journal.drop()
    return fixed.record


def _explained(bench: Bench, journal: Journal) -> tuple[Compared, Explanation, Observed]:
    """What a fix starts from. Where the standard is to be made better by itself, there is nothing to explain."""
    known = read_start(bench, journal)
    if known is not None:
        return known
    if bench.case.alone:
        compared = measuring.compare_at(bench)
        start = compared, nothing_to_explain(compared.comparison), Observed()
    else:
        start = _explain(bench)
    keep_start(journal, *start)
    return start


def demo(folder: Path, progress: Progress = silent, *, case: Case | None = None) -> Fix:
    """The article's case: build standard and Flash from all-MiniLM-L6-v2, then ``fix``.

    The two models stay in ``folder`` beside the fixed one; ``case`` changes how it is measured.
    """
    base = demo_case(folder, progress)
    if case is not None:
        base = msgspec.structs.replace(case, standard=base.standard, variant=base.variant, workload=base.workload)
    return fix(base, folder / "fixed", progress, beside_article=True)


def demo_case(folder: Path, progress: Progress = silent) -> Case:
    """Write the standard and the article's Flash into ``folder``, and say how to compare them."""
    import onnx  # noqa: PLC0415 - only the demo writes models by itself

    from unlag.demo.bert import build_bert  # noqa: PLC0415 - the same
    from unlag.demo.flash import FlashRecipe, make_flash  # noqa: PLC0415 - the same

    def loaded(what: str, done: int, total: int) -> None:
        progress(f"downloading {what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    checkpoint = assets.minilm_checkpoint(loaded)
    assets.stsb_test(loaded)
    progress("building the standard and the Flash variant")
    standard, recipe = build_bert(checkpoint), FlashRecipe()
    paths = {"standard": folder / "standard.onnx", "flash": folder / "flash.onnx"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(standard, paths["standard"])
        onnx.save(make_flash(standard, recipe), paths["flash"])
    except OSError as error:
        raise UsageError(f"{folder} can't be written: {error.strerror or error}") from error
    return Case(
        standard=Variant("onnxruntime", str(paths["standard"])),
        variant=Variant("onnxruntime", str(paths["flash"]), recipe.options),
        workload=DEMO_WORKLOAD,
    )


@contextlib.contextmanager
def _staging(output: Path) -> Iterator[Path]:
    """A hidden folder beside the output, moved into its place only when all is done."""
    output = output.resolve()  # "." has no name of its own, and a link can't be replaced by a folder
    foreign = _foreign(output)
    if foreign:
        raise UsageError(f"{output} holds something that unlag did not write: {foreign}", hint="choose another -o DIR")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    except OSError as error:
        raise UsageError(f"{output.parent} can't be written: {error.strerror or error}") from error
    try:
        yield folder
        folder.chmod(0o755)
        if output.exists():
            shutil.rmtree(output)
        folder.replace(output)
    except OSError as error:
        raise UsageError(f"{error.filename or output} can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _foreign(output: Path) -> str:
    """The name of something in the output's place that must not be lost; nothing where it may be replaced."""
    if not output.exists():
        return ""
    if not output.is_dir():
        return "a file"
    names = sorted(path.name for path in output.iterdir())
    ours = (
        {*WRITTEN, *(Path(name).parts[0] for name in read_deployment(output).data)} if DESCRIPTION in names else set()
    )
    return next((name for name in names if name not in ours), "")


def _write_output(folder: Path, bench: Bench, fixed: Fixed, *, beside_article: bool) -> None:
    """Model with its external data, how to run it, the record, and the report."""
    use, variant, threads, replicas = fixed.record.throughput, fixed.variant, bench.threads, 1
    if use is not None:
        threads, replicas = use.threads, use.replicas
        variant = Crew(variant, replicas, threads).opened
    deploy(variant, threads, folder, replicas=replicas, made=_made(bench, variant), beside=fixed.beside)
    (folder / RECORD).write_bytes(to_json(fixed.record))
    (folder / REPORT).write_text(render_html(fixed.record, beside_article=beside_article), "utf-8")
    (folder / NOTE).write_text(folder_note(variant, threads, replicas), "utf-8")


def _made(bench: Bench, variant: Variant) -> Made:
    """For what and on what the model was made."""
    case, model = bench.case, bench.host.cpu.model
    return Made(
        objective=case.objective,
        workload=case.workload,
        shape=bench.workload.shape,
        cpu="" if isinstance(model, Missing) else model,
        cores=len(bench.cores),
        versions=dict(_versions("unlag", variant.runtime)),
    )


def _versions(*packages: str) -> Iterator[tuple[str, str]]:
    """Of those packages that are installed under these names."""
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            yield name, version(name)
