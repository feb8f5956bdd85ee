"""The options that commands share, and how their texts become values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlag.errors import UsageError

if TYPE_CHECKING:
    from unlag.model.case import Case
    from unlag.proof.explain import Extent

SPEC = "[runtime:]path[,option=value...]"

Standard = Annotated[str, typer.Argument(help=f"The model as it was: {SPEC}")]
VariantSpec = Annotated[str, typer.Argument(help=f"The optimized model: {SPEC}")]
Workload = Annotated[
    str, typer.Option(metavar="NAME", help="stsb, sentiment, random, FILE.npz or module:function: what is run.")
]
Shapes = Annotated[str, typer.Option(metavar="BxS[,BxS...]", help="Batch x sequence; a verdict holds for a shape.")]
Dim = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Fix another dynamic dimension; repeatable.")]
Rounds = Annotated[int, typer.Option(metavar="N", help="Rounds in which every contender is timed once.")]
MaxRounds = Annotated[
    int | None, typer.Option(metavar="N", help="Stop here even undecided. [default: five times --rounds]")
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="Threads inside an operator. [default: one for each usable core]")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of inputs, order of rounds and resampling.")]
Patience = Annotated[float, typer.Option(metavar="SECONDS", help="A contender that is silent for longer hangs.")]
Budget = Annotated[float, typer.Option(metavar="POINTS", help="Accuracy points that a fixed model may lose.")]
Target = Annotated[str, typer.Option(metavar="cpu|gpu|npu", help="Where the fixed model is to run.")]
OptionalVariant = Annotated[
    str | None, typer.Argument(help=f"The optimized model; without it the standard itself is made better: {SPEC}")
]
Objective = Annotated[
    str,
    typer.Option(
        metavar="latency|throughput|size",
        help="Time of one run, rows a second of all cores, or bytes on disk at no loss of time.",
    ),
]
StrictAccuracy = Annotated[
    bool, typer.Option("--strict-accuracy", help="The whole interval of the loss has to stay in the budget.")
]
AnyRuntime = Annotated[
    bool, typer.Option("--any-runtime", help="The fixed model may run in another installed runtime than the standard.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what an interrupted fix has measured.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the record as JSON.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file.")]
MarkdownFile = Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write it as Markdown.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the verdict only, and no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
"""Read by ``entry`` before parsing, so that it holds for errors of parsing too."""

Quick = Annotated[bool, typer.Option("--quick", help="Diagnose only: under a minute, and nothing is proven.")]
Graft = Annotated[bool, typer.Option("--graft", help="Measure the variant with each block of the standard as well.")]
ClaimStandard = Annotated[
    float | None,
    typer.Option(
        "--claim-standard-ms",
        metavar="MS",
        help="The standard's time as you measured it; where unlag's differs, it looks for what gives yours.",
    ),
]
ClaimVariant = Annotated[
    float | None,
    typer.Option(
        "--claim-variant-ms",
        metavar="MS",
        help="The variant's time as you measured it; where unlag's differs, it looks for what gives yours.",
    ),
]
SaveEvidence = Annotated[
    Path | None, typer.Option("--save-evidence", metavar="FILE", help="Write what diagnosis is made from.")
]

_OF_CASE = re.compile(r"^(?:rounds|max_rounds|threads|seed|patience|accuracy_budget|dim)\b")
"""Arguments of ``make_case`` in its messages: at the start, so that no file's name is taken for one."""
_OF_EXTENT = re.compile(r"\b(?:quick|graft|claim_standard_ms|claim_variant_ms)\b")
"""The same of ``make_extent``, which knows no names but its own."""


@dataclass(frozen=True)
class Asked:
    """What the command line says about a case, not yet checked."""

    standard: str
    variant: str
    workload: str
    shapes: str
    dim: list[str] | None
    rounds: int
    max_rounds: int | None
    threads: int | None
    seed: int
    patience: float
    accuracy_budget: float
    strict_accuracy: bool = False
    objective: str = "latency"
    target: str = "cpu"
    any_runtime: bool = False

    def case(self) -> Case:
        """The case that was asked for.

        Raises:
            UsageError: it makes no sense.
        """
        from unlag.api import make_case

        with _named_as_options(_OF_CASE):
            return make_case(
                self.standard,
                self.variant,
                workload=self.workload,
                shapes=self.shapes,
                dims=dims_of(self.dim),
                rounds=self.rounds,
                max_rounds=self.max_rounds,
                threads=self.threads,
                seed=self.seed,
                patience_s=self.patience,
                accuracy_budget=self.accuracy_budget,
                strict_accuracy=self.strict_accuracy,
                objective=self.objective,
                target=self.target,
                any_runtime=self.any_runtime,
            )


@dataclass(frozen=True)
class Wanted:
    """What the command line says about an explanation, not yet checked."""

    quick: bool
    graft: bool
    claimed_ms: tuple[float | None, float | None]
    """The standard's and the variant's."""

    def extent(self) -> Extent:
        """How far the explanation goes.

        Raises:
            UsageError: it makes no sense.
        """
        from unlag.api import make_extent

        standard_ms, variant_ms = self.claimed_ms
        with _named_as_options(_OF_EXTENT):
            return make_extent(
                quick=self.quick, graft=self.graft, claim_standard_ms=standard_ms, claim_variant_ms=variant_ms
            )


@contextlib.contextmanager
def _named_as_options(arguments: re.Pattern[str]) -> Iterator[None]:
    """Messages of the Python interface name its arguments; here they are to name options."""
    try:
        yield
    except UsageError as error:
        message = arguments.sub(lambda found: "--" + found[0].replace("_", "-"), error.message)
        raise UsageError(message, error.hint) from error


def dims_of(texts: list[str] | None) -> dict[str, int]:
    """``NAME=VALUE`` texts as sizes.

    Raises:
        UsageError: one is of another form, or a name comes twice.
    """
    dims: dict[str, int] = {}
    for text in texts or ():
        name, separator, value = text.rpartition("=")
        if not separator or not name or not value.isdecimal():
            raise UsageError(f"--dim {text!r} is not of the form NAME=VALUE", hint="such as --dim past_length=16")
        if name in dims:
            raise UsageError(f"--dim {name} is given twice")
        dims[name] = int(value)
    return dims
