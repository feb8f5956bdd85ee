"""What to type next: the same models under the same conditions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from unlag.measure.comparison import Comparison
from unlag.proof.explanation import Explanation
from unlag.report.document import Command, Section

DEFAULT_WORKLOAD, DEFAULT_SHAPE = "random", "1x128"


def next_section(explanation: Explanation) -> list[Section]:
    """The command that proves what is only suspected, and the one that makes a model which does not lag."""
    comparison = explanation.comparison
    commands = []
    if explanation.quick and any(cause.status == "suspected" for cause in explanation.causes):
        commands.append(Command("To measure them", command(["unlag", "explain", *_models(comparison)])))
    if comparison.verdict.lags:
        commands.append(Command("Next", command(["unlag", "fix", *_models(comparison), "-o", "fixed/"])))
    return [Section(tuple(commands))] if commands else []


def command(words: Sequence[str]) -> str:
    """Words as a shell reads them back."""
    return shlex.join(words)


def _models(comparison: Comparison) -> list[str]:
    """Both specs, and the options without which something else would be measured."""
    words = [comparison.standard.spec, comparison.variant.spec]
    if comparison.workload != DEFAULT_WORKLOAD:
        words += ["--workload", comparison.workload]
    asked = comparison.asked_for
    if asked is None:
        return words
    if asked.shapes and asked.shapes[0] != DEFAULT_SHAPE and _takes_shapes(comparison):
        words += ["--shapes", asked.shapes[0]]
    for name, size in asked.dims.items():
        words += ["--dim", f"{name}={size}"]
    if asked.threads is not None:
        words += ["--threads", str(asked.threads)]
    return words


def _takes_shapes(comparison: Comparison) -> bool:
    """A file of inputs has the shapes that it has, unless labels cut it into batches."""
    return not comparison.workload.endswith(".npz") or comparison.standard.accuracy is not None
