"""PyTorch's own model, compiled or not, and torchao's quantization of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from benchmarks.peers.contract import Artifact, Job
from benchmarks.peers.runtimes.pytorch import Encoder, Saved, save, spare_torchvision
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from unlag.measure.bench import inspect
from unlag.model.variant import Variant

COSTLY = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.ConvTranspose2d)
"""Where most of the time goes."""

MAX = {"compile": "on", "mode": "max-autotune", "freezing": "on"}


def eager(job: Job) -> Artifact:
    """As PyTorch runs it by itself."""
    return _saved(job, _model(job))


def compiled(job: Job) -> Artifact:
    """``torch.compile`` with its defaults; it compiles at the first run."""
    return _saved(job, _model(job), compile="on")


def compiled_max(job: Job) -> Artifact:
    """``torch.compile`` with kernels chosen by measuring, and weights frozen, so that they may be packed."""
    return _saved(job, _model(job), **MAX)


def torchao_dynamic(job: Job) -> Artifact:
    """Int8 weights per channel, activations quantized per token at run time."""
    return _saved(job, _quantized(job))


def torchao_dynamic_compiled(job: Job) -> Artifact:
    """The same, compiled, as torchao asks for."""
    return _saved(job, _quantized(job), **MAX)


def _quantized(job: Job) -> torch.nn.Module:
    from torchao.quantization import (  # noqa: PLC0415 - not for those who only run float models
        Int8DynamicActivationInt8WeightConfig,
        quantize_,
    )

    model = _model(job)
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    for part in model.modules():  # how torchao lets a layer print itself can't be written to a file
        vars(part).pop("extra_repr", None)
    return model


def _model(job: Job) -> torch.nn.Module:
    """The checkpoint's own PyTorch model; for models that were published as ONNX only, a conversion of that."""
    if job.subject.checkpoint:
        from transformers import AutoModel  # noqa: PLC0415 - only text models need it

        return Encoder(AutoModel.from_pretrained(job.subject.checkpoint)).eval()
    spare_torchvision()
    import onnx2torch  # noqa: PLC0415 - only the other models need it

    converted: torch.nn.Module = onnx2torch.convert(_readable(job.standard))
    return converted.eval()


def _readable(path: Path) -> onnx.ModelProto:
    """The file as the converter wants it: nodes with names, constants as initializers, no reshaping to rows.

    Its Reshape reads the wanted shape from a tensor at every run, which ``torch.compile`` gives up on.
    """
    model = ir.load(path)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for number, node in enumerate(model.graph):
        node.name = node.name or f"node{number}"
        if node.op_type == "Reshape" and _to_rows(node):
            node.op_type = "Flatten"
            node.resize_inputs(1)
    return ir.to_proto(model)


def _to_rows(node: ir.Node) -> bool:
    """Whether it keeps the first axis and joins all others."""
    shape = node.inputs[1]
    wanted = None if shape is None or shape.const_value is None else shape.const_value.numpy()
    return wanted is not None and wanted.size == 2 and wanted[0] in {-1, 0}


def _saved(job: Job, model: torch.nn.Module, **options: str) -> Artifact:
    path = job.folder / "model.pt"
    signature = inspect(job.subject.standard).signature
    save(Saved(model, signature), path)
    common = {} if job.subject.checkpoint else {"converted": "on"}
    plain = Variant("pytorch", str(path), common) if options else None
    kinds = Counter(type(part).__name__ for part in model.modules() if isinstance(part, COSTLY))
    note = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return Artifact(Variant("pytorch", str(path), common | options), path.stat().st_size, note, plain)
