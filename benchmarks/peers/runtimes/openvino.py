"""OpenVINO on the CPU. Imported in the worker, and by the tool that writes its models."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.runtimes.timed_only import TimedOnly

from unlag.errors import Missing
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Signature, TensorInfo
from unlag.runtimes.contract import Inspection, Option

if TYPE_CHECKING:
    import openvino as ov

OPTIONS = (Option("precision", "f32, bf16", "in which the runtime computes; its own choice without"),)


class OpenVinoSession:
    """A compiled model and one request."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._outputs = {_name(port): port for port in compiled.outputs}
        self.signature = Signature(
            inputs=tuple(_info(port) for port in compiled.inputs),
            outputs=tuple(_info(port) for port in compiled.outputs),
        )

    def run(self, feed: Feed, outputs: Sequence[str] | None = None) -> Mapping[str, Array]:
        """Run once; outputs by name, copied: the request's own memory is used again."""
        results = self._request.infer(dict(feed), share_inputs=True)
        names = self._outputs if outputs is None else outputs
        return {name: np.array(results[self._outputs[name]]) for name in names}

    def run_only(self, feed: Feed) -> None:
        """Run once for timing, without copying inputs or outputs."""
        self._request.infer(feed, share_inputs=True, share_outputs=True)


class OpenVino(TimedOnly):
    """The runtime."""

    name = "openvino"
    options = OPTIONS

    def missing(self) -> Missing | None:
        """The reason where the package isn't there."""
        if importlib.util.find_spec("openvino") is None:
            return Missing("the package openvino is not installed: benchmarks/peers/requirements.txt has it")
        return None

    def inspect(self, variant: Variant) -> Inspection:
        """Signature and size of the two files."""
        path = Path(variant.path)
        size = sum(file.stat().st_size for file in (path, path.with_suffix(".bin")) if file.exists())
        return Inspection(signature=self.open(variant, 1).signature, limits={}, size_bytes=size)

    def open(self, variant: Variant, threads: int) -> OpenVinoSession:
        """Compile the model."""
        import openvino as ov  # noqa: PLC0415 - only where a model is opened

        self.check(variant)
        return OpenVinoSession(ov.compile_model(variant.path, "CPU", config_of(variant, threads)))


def config_of(variant: Variant, threads: int) -> dict[str, Any]:
    """One request at a time, on so many threads."""
    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    if "precision" in variant.options:
        config["INFERENCE_PRECISION_HINT"] = variant.options["precision"]
    return config


def _name(port: ov.ConstOutput) -> str:
    return str(port.get_any_name()) if port.get_names() else f"output{port.get_index()}"


def _info(port: ov.ConstOutput) -> TensorInfo:
    shape = tuple(size.get_length() if size.is_static else None for size in port.get_partial_shape())
    return TensorInfo(_name(port), np.dtype(port.get_element_type().to_dtype()).name, shape)


RUNTIME = OpenVino()
