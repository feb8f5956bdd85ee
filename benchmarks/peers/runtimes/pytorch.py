"""PyTorch on the CPU, eager or compiled. Imported in the worker, and by the tool that writes its models."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from benchmarks.peers.runtimes.timed_only import TimedOnly

from unlag.errors import Missing
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Signature
from unlag.runtimes.contract import Inspection, Option

OPTIONS = (
    Option("compile", "on", "torch.compile, at the first run"),
    Option("mode", "default, max-autotune", "of torch.compile"),
    Option("freezing", "on", "torch.compile may take weights for constants and pack them"),
    Option("converted", "on", "the module was made by onnx2torch"),
)


class Encoder(torch.nn.Module):
    """A Hugging Face encoder with its inputs in the order of the ONNX file, and its token states only."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Token states, [batch, sequence, hidden]."""
        states: torch.Tensor = self.model(input_ids=input_ids, attention_mask=mask, token_type_ids=segments)[0]
        return states


@dataclass(frozen=True)
class Saved:
    """What a file holds: a module that takes the signature's inputs in their order."""

    module: torch.nn.Module
    signature: Signature


def save(saved: Saved, path: Path) -> None:
    """Write it with its code's names: the file is opened by this benchmark only."""
    torch.save({"module": saved.module, "signature": saved.signature}, path)


class PyTorchSession:
    """A module in inference mode. Inputs become tensors once for each feed, outside of what is timed."""

    def __init__(self, call: Callable[..., Any], signature: Signature) -> None:
        self._forward = call
        self.signature = signature
        self._feed: Feed | None = None
        self._tensors: list[torch.Tensor] = []

    def run(self, feed: Feed, outputs: Sequence[str] | None = None) -> Mapping[str, Array]:
        """Run once; outputs by name."""
        found = self._call(self._inputs(feed))
        arrays = found if isinstance(found, (tuple, list)) else (found,)
        named = {info.name: x.numpy() for info, x in zip(self.signature.outputs, arrays, strict=False)}
        return named if outputs is None else {name: named[name] for name in outputs}

    def run_only(self, feed: Feed) -> None:
        """Run once for timing."""
        if feed is not self._feed:
            self._feed, self._tensors = feed, self._inputs(feed)
        self._call(self._tensors)

    def _inputs(self, feed: Feed) -> list[torch.Tensor]:
        return [torch.from_numpy(np.array(feed[info.name])) for info in self.signature.inputs]

    def _call(self, tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 - one tensor or several
        with torch.inference_mode():
            return self._forward(*tensors)


class PyTorch(TimedOnly):
    """The runtime."""

    name = "pytorch"
    options = OPTIONS

    def missing(self) -> Missing | None:
        """Nothing: this file can't be imported without it."""
        return None

    def inspect(self, variant: Variant) -> Inspection:
        """Signature and size of the file."""
        size = Path(variant.path).stat().st_size
        return Inspection(signature=_read(variant).signature, limits={}, size_bytes=size)

    def open(self, variant: Variant, threads: int) -> PyTorchSession:
        """Read the module; compiling happens at the first run."""
        self.check(variant)
        torch.set_num_threads(threads)
        saved = _read(variant)
        call: Callable[..., Any] = saved.module
        if variant.options.get("compile") == "on":
            torch._inductor.config.freezing = variant.options.get("freezing") == "on"  # noqa: SLF001 - no public name
            call = torch.compile(call, mode=variant.options.get("mode"))
        return PyTorchSession(call, saved.signature)


def spare_torchvision() -> None:
    """Let onnx2torch be imported without torchvision, which it needs for two operators of detectors only."""
    if importlib.util.find_spec("torchvision") is None:
        whole, part = ModuleType("torchvision"), ModuleType("torchvision.ops")
        vars(part)["roi_align"] = None
        vars(whole)["ops"] = part
        sys.modules |= {"torchvision": whole, "torchvision.ops": part}


def _read(variant: Variant) -> Saved:
    if variant.options.get("converted") == "on":
        spare_torchvision()
    # The file was written by this benchmark a moment ago, and holds code: weights alone would not do.
    content = torch.load(variant.path, weights_only=False)
    return Saved(content["module"], content["signature"])


RUNTIME = PyTorch()
