"""The commands. Each reads its arguments and returns the job that they ask for; nothing heavy is imported before."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unlag.cli import jobs, options
from unlag.cli.jobs import Job
from unlag.cli.options import Asked, Wanted
from unlag.cli.outputs import Outputs

app = typer.Typer(
    name="unlag",
    rich_markup_mode=None,
    add_completion=False,
    help="Is the optimized model really faster? If not: why, with proof, and a model that is.",
    epilog="Exit codes: 0 no lag, 1 it lags in speed or accuracy, 2 wrong usage or unreadable input, "
    "3 inconclusive, 4 a fault of unlag.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        from importlib.metadata import version

        typer.echo(f"unlag {version('unlag')}")
        raise typer.Exit


@app.callback()
def _everywhere(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    del version, debug


@app.command()
def compare(
    standard: options.Standard,
    variant: options.VariantSpec,
    *,
    workload: options.Workload = "random",
    shapes: options.Shapes = "1x128",
    dim: options.Dim = None,
    rounds: options.Rounds = 5,
    max_rounds: options.MaxRounds = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    patience: options.Patience = 120.0,
    accuracy_budget: options.Budget = 0.5,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    markdown: options.MarkdownFile = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> Job:
    """Measure whether VARIANT lags behind STANDARD.

    In speed and in accuracy, each with its interval; the exit code says which.

    Example: unlag compare fp32.onnx int8.onnx --workload stsb --shapes 1x32,1x128
    """
    del debug
    asked = Asked(
        standard, variant, workload, shapes, dim, rounds, max_rounds, threads, seed, patience, accuracy_budget
    )
    return partial(jobs.compare, asked, Outputs(json, html, markdown), quiet=quiet)


@app.command()
def explain(
    standard: options.Standard,
    variant: options.VariantSpec,
    *,
    workload: options.Workload = "random",
    shapes: options.Shapes = "1x128",
    dim: options.Dim = None,
    rounds: options.Rounds = 5,
    max_rounds: options.MaxRounds = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    patience: options.Patience = 120.0,
    accuracy_budget: options.Budget = 0.5,
    quick: options.Quick = False,
    graft: options.Graft = False,
    claim_standard_ms: options.ClaimStandard = None,
    claim_variant_ms: options.ClaimVariant = None,
    save_evidence: options.SaveEvidence = None,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    markdown: options.MarkdownFile = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> Job:
    """Prove what causes the lag, in milliseconds.

    Each cause is measured by taking it away, and all of them add up to the gap.

    Example: unlag explain fp32.onnx int8.onnx --html why.html
    """
    del debug
    asked = Asked(
        standard, variant, workload, shapes, dim, rounds, max_rounds, threads, seed, patience, accuracy_budget
    )
    wanted = Wanted(quick=quick, graft=graft, claimed_ms=(claim_standard_ms, claim_variant_ms))
    return partial(jobs.explain, asked, wanted, Outputs(json, html, markdown, save_evidence), quiet=quiet)


@app.command()
def diagnose(
    evidence: Annotated[Path, typer.Argument(metavar="EVIDENCE", help="A file that --save-evidence has written.")],
    *,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    markdown: options.MarkdownFile = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> Job:
    """Diagnose saved evidence again, without measuring.

    What is found is suspected: only explain, with the models, proves.

    Example: unlag diagnose evidence.json --markdown causes.md
    """
    del debug
    return partial(jobs.diagnose, evidence, Outputs(json, html, markdown), quiet=quiet)


@app.command()
def fix(
    standard: options.Standard,
    variant: options.OptionalVariant = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="New folder for the fixed model.")],
    workload: options.Workload = "random",
    shapes: options.Shapes = "1x128",
    dim: options.Dim = None,
    rounds: options.Rounds = 5,
    max_rounds: options.MaxRounds = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    patience: options.Patience = 120.0,
    accuracy_budget: options.Budget = 0.5,
    strict_accuracy: options.StrictAccuracy = False,
    objective: options.Objective = "latency",
    target: options.Target = "cpu",
    any_runtime: options.AnyRuntime = False,
    resume: options.Resume = False,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    markdown: options.MarkdownFile = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> Job:
    """Build a model that does not lag.

    In three stages (quantization, graph, hardware) that keep only what is measured to help. Without VARIANT the
    standard itself is made better.

    Example: unlag fix fp32.onnx int8.onnx -o fixed/ --workload stsb --accuracy-budget 0.5
    """
    del debug
    asked = Asked(
        standard,
        standard if variant is None else variant,
        workload,
        shapes,
        dim,
        rounds,
        max_rounds,
        threads,
        seed,
        patience,
        accuracy_budget,
        strict_accuracy,
        objective,
        target,
        any_runtime,
    )
    return partial(jobs.fix, asked, output, Outputs(json, html, markdown), quiet=quiet, resume=resume)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where models and results go.")] = Path("unlag-demo"),
    *,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    markdown: options.MarkdownFile = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> Job:
    """Run the article's case on a real model.

    Its Flash variant goes from lag to lead in the article's three stages. Weights are downloaded once.

    Example: unlag demo --html demo.html
    """
    del debug
    return partial(jobs.demo, folder, Outputs(json, html, markdown), quiet=quiet)


@app.command()
def env(*, json: options.JsonFile = None, debug: options.Debug = False) -> Job:
    """Show the machine, and what to change on it.

    What can be read, what can't and why, and the commands that make it quieter for measuring.

    Example: unlag env --json machine.json
    """
    del debug
    return partial(jobs.show_environment, json)


@app.command()
def causes(
    cause: Annotated[str | None, typer.Argument(metavar="ID", help="Show what is known of this one.")] = None,
    *,
    debug: options.Debug = False,
) -> Job:
    """List the causes of lag, or explain one.

    Example: unlag causes dequantized_weights
    """
    del debug
    return jobs.list_causes if cause is None else partial(jobs.explain_cause, cause)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN.json", help="A record that --json has written.")],
    *,
    beside_article: Annotated[
        bool, typer.Option("--beside-article", help="Show a fix beside the article's table, as the demo does.")
    ] = False,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    markdown: options.MarkdownFile = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> Job:
    """Show a stored record again.

    Nothing is measured; the exit code is that of the run.

    Example: unlag report run.json --html report.html
    """
    del debug
    return partial(jobs.replay, run, Outputs(json, html, markdown), quiet=quiet, beside_article=beside_article)
