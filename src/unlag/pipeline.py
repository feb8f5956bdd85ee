"""The program: compare, explain and fix, each as the list of its steps. Each step hands on a frozen value."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unlag import assets
from unlag.errors import NonfiniteError, UsageError
from unlag.measure import compare as measuring
from unlag.measure.bench import Bench, first_shape, inspect, open_bench
from unlag.measure.comparison import Comparison
from unlag.measure.progress import Progress, silent
from unlag.model.case import Case
from unlag.model.deployment import DESCRIPTION, MODEL, deploy, deployed_variant, read_deployment
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed
from unlag.observe.evidence import EvidenceRecord
from unlag.observe.gather import observe
from unlag.observe.nonfinite import where_nonfinite
from unlag.proof.explain import Extent, diagnosis, explain_evidence
from unlag.proof.explanation import Explanation
from unlag.report.record import to_json
from unlag.report.to_html import render as render_html
from unlag.runtimes.contract import find_runtime
from unlag.stages.fix import Fixed, fix_variant
from unlag.stages.fixed import Fix

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
    return diagnosis(record.comparison, record.evidence)


def _explain(bench: Bench, extent: Extent | None = None, keep: Keep | None = None) -> tuple[Compared, Explanation]:
    begin, end = (0.5, 0.9) if extent is not None and extent.quick else (0.2, 0.3)
    with _locating_nonfinite(bench):
        compared = measuring.compare_at(bench.within(0.0, begin))
    evidence = observe(bench.within(begin, end), compared.comparison)
    if extent is not None and extent.claim is not None:
        evidence = msgspec.structs.replace(evidence, claim=extent.claim)
    if keep is not None:
        keep(EvidenceRecord(comparison=compared.comparison, evidence=evidence))
    return compared, explain_evidence(bench.within(end, 1.0), compared, evidence, extent)


@contextlib.contextmanager
def _locating_nonfinite(bench: Bench) -> Iterator[None]:
    """Where outputs are NaN or infinite nothing can be compared; say at least which tensor was the first."""
    try:
        yield
    except NonfiniteError as error:
        place = where_nonfinite(bench)
        raise NonfiniteError(error.message, place or error.hint) from error


def fix(case: Case, output: Path, progress: Progress = silent, *, beside_article: bool = False) -> Fix:
    """Case -> Explanation -> stages -> a folder that ``load`` opens, whose report may show the article's table too.

    Raises:
        UsageError: the output folder holds something else, or can't be written; nothing is left half-written.
    """
    with _staging(output) as folder:
        bench = open_bench(case, first_shape(case), progress)
        inspect(case.variant)
        compared, explanation = _explain(bench.within(0.0, 0.45))
        with tempfile.TemporaryDirectory(prefix="unlag-") as plans:
            fixed = fix_variant(bench.within(0.45, 1.0), compared, explanation, Path(plans), output)
            _write_output(folder, fixed, bench.threads, beside_article=beside_article)
    return fixed.record


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


class FixedModel:
    """A model that ``unlag fix`` wrote, open and ready to run."""

    def __init__(self, variant: Variant, threads: int) -> None:
        self.variant = variant
        self._session = find_runtime(variant.runtime).open(variant, threads)
        self.signature = self._session.signature

    def run(self, feed: Feed) -> Mapping[str, Array]:
        """Run once: inputs by name in, outputs by name out."""
        return self._session.run(feed)


def load(folder: str | Path) -> FixedModel:
    """Open a folder that ``unlag fix`` wrote.

    Raises:
        UsageError: it is no such folder, or its runtime can't be used here.
    """
    return FixedModel(*deployed_variant(Path(folder)))


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


def _write_output(folder: Path, fixed: Fixed, threads: int, *, beside_article: bool) -> None:
    """Model with its external data, how to run it, the record, and the report."""
    deploy(fixed.variant, threads, folder)
    (folder / RECORD).write_bytes(to_json(fixed.record))
    (folder / REPORT).write_text(render_html(fixed.record, beside_article=beside_article), "utf-8")
    (folder / NOTE).write_text(_readme(fixed.variant, threads), "utf-8")


def _readme(variant: Variant, threads: int) -> str:
    options = ", ".join(f"{key}={value}" for key, value in variant.options.items()) or "none"
    return (
        "Written by `unlag fix`. `report.html` shows what was measured, `run.json` holds every number.\n\n"
        'With unlag: `unlag.load("this folder").run({"input": array})`.\n\n'
        f'Without: `onnxruntime.InferenceSession("{MODEL}")`; it was measured with {threads} threads\n'
        f"and these session options: {options}.\n"
    )
