"""Models for the NPU: a float graph that its compiler takes, what is quantized from it, and what the compiler says."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from unlag.errors import ContenderError
from unlag.measure import exchange
from unlag.measure.bench import Bench
from unlag.measure.process import WorkerProcess
from unlag.model.draft import open_draft
from unlag.model.graph import read_model, save_model
from unlag.model.variant import Variant
from unlag.model.workload import Feed, Workload
from unlag.rewrites.bound_masks import bound_masks
from unlag.rewrites.fix_dimensions import fix_dimensions
from unlag.rewrites.flat_products import flat_products
from unlag.rewrites.fold_constants import fold_constants
from unlag.rewrites.fuse_gelu import fuse_gelu
from unlag.rewrites.fuse_layer_norm import fuse_layer_norm
from unlag.rewrites.inline_branches import inline_branches
from unlag.rewrites.quantize_npu import Wide, quantize_npu
from unlag.rewrites.remove_softmax_guard import remove_softmax_guard
from unlag.rewrites.unroll_loops import unroll_loops
from unlag.runtimes.onnxruntime import qualcomm
from unlag.stages.to_float import to_float

CHIP = "60"
"""Snapdragon X Elite (SC8380XP, HTP v73): the first chip of the laptops that run ONNX Runtime's NPU provider, and one
that has float16. A spec with ``provider=qnn,provider.soc_model=N`` asks for another one."""

COMPILER = "the compiler for the NPU"
COMPILE_PATIENCE_S = 3600.0
"""A large model takes the compiler minutes."""
_PREFACE = re.compile(r"(?<=: )onnxruntime can't open .*?\[ONNXRuntimeError\] : \d+ : \w+ : ", re.DOTALL)
"""What the runtime's messages begin with: the name of a temporary file, and numbers."""


class Scheme(NamedTuple):
    """Numbers that a model is given on the NPU, in the order in which they are tried: the fewest bits first."""

    name: str
    wide: Wide | None
    """Nothing: no codes, and the NPU rounds to float16."""


SCHEMES = (
    Scheme("8-bit weights and activations", "none"),
    Scheme("8 bits, and 16 around normalizations and Softmax", "sums"),
    Scheme("8-bit weights, 16-bit activations", "all"),
    Scheme("float16", None),
)


class Rewrite(NamedTuple):
    """A change of the float graph, and what it does for the compiler."""

    name: str
    apply: Callable[[ir.Model], int]


REWRITES = (
    Rewrite("branches with a fixed condition inlined", inline_branches),
    Rewrite("loops of a fixed length unrolled", unroll_loops),
    Rewrite("guards against NaN behind a Softmax removed", remove_softmax_guard),
    Rewrite("attention masks finite, as one sum", bound_masks),
)
"""On the graph as it was exported, its dimensions fixed."""

FUSIONS = (
    Rewrite("GELU in one operator", fuse_gelu),
    Rewrite("layer normalization in one operator", fuse_layer_norm),
    Rewrite("products over tokens and features only", flat_products),
)
"""Once what is known is folded."""


def npu_options(options: Mapping[str, str]) -> dict[str, str]:
    """Session options for the NPU: all of the graph on it, for the chip that the spec names."""
    asked = {key: value for key, value in options.items() if key.startswith("provider.")}
    return {"provider": "qnn", qualcomm.SOC: CHIP, **qualcomm.WHOLE, **asked}


def prepare(bench: Bench, path: Path, *, rewrites: bool) -> dict[str, int]:
    """Write the standard's float graph as the compiler takes it; what was changed how often, by name.

    Without rewrites its dimensions are fixed and its constants folded, no more.

    Raises:
        UsageError: the standard can't be read, or the runtime can't fold it.
    """
    draft = open_draft(bench.case.standard, bench.case.standard)
    model = draft.model
    to_float(draft)
    shapes = {name: array.shape for name, array in bench.workload.feed.items()}
    changed = {"dimensions of inputs fixed": fix_dimensions(model, shapes)}
    changed |= {name: apply(model) for name, apply in REWRITES if rewrites}
    raw = path.with_suffix(".raw.onnx")
    save_model(model, raw)
    fold_constants(raw, path)
    raw.unlink()
    if rewrites:
        model = read_model(path)
        changed |= {name: apply(model) for name, apply in FUSIONS}
        exact_gelu(model)
        save_model(model, path)
    return {name: count for name, count in changed.items() if count}


def exact_gelu(model: ir.Model) -> int:
    """GELU by tanh becomes GELU, which the NPU has: they differ by 5e-4 at most, less than its codes."""
    found = [node for node in model.graph if node.op_type == "FastGelu" and len(node.inputs) == 1]
    for node in found:
        node.op_type = "Gelu"
    return len(found)


def compile_model(bench: Bench, variant: Variant, folder: Path) -> qualcomm.Compilation:
    """Compile in a process of its own, and leave the compiled model in the folder.

    Raises:
        ContenderError: the compiler refuses the model, crashes or hangs.
        UsageError: it says nothing that can be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = WorkerProcess(COMPILER)
    try:
        with tempfile.TemporaryDirectory(prefix="unlag-") as name:
            feed = Path(name) / "feed"
            exchange.write_feeds(feed, [bench.workload.feed])
            opening = exchange.Open(
                qualcomm.compiling(variant, folder), bench.threads, bench.cores, str(feed), cold=True
            )
            process.ask(opening, exchange.Opened, COMPILE_PATIENCE_S)
        return qualcomm.read_compilation(folder, process.printed())
    except ContenderError as error:
        raise ContenderError(_PREFACE.sub("", error.message), error.hint) from error
    finally:
        process.end()


def quantized(bench: Bench, scheme: Scheme, prepared: Path, path: Path) -> Path | None:
    """The prepared graph in a scheme's numbers; nothing where the scheme is the one before it for this model.

    Raises:
        UsageError: the quantizer does not take it.
    """
    if scheme.wide is None:
        return prepared
    made = quantize_npu(prepared, path, calibration_of(bench.workload), wide=scheme.wide)
    return path if made else None


def calibration_of(workload: Workload) -> Sequence[Feed]:
    """Runs to take ranges from: those that the workload has for it, or what it compares outputs on."""
    return workload.calibration or workload.agreement or (workload.feed,)
