"""ONNX Runtime's own quantizer, and the standard as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter
from benchmarks.peers.contract import Artifact, Job
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader
from onnxruntime.quantization.shape_inference import quant_pre_process

from unlag.model.graph import read_model, size_on_disk_bytes
from unlag.model.variant import Variant
from unlag.model.workload import Array
from unlag.runtimes.contract import find_runtime

PER_CHANNEL_OPSET = 13
"""Quantized weights have an axis from this operator set on."""

QUIET_TYPES = frozenset(["Shape", "Gather", "Unsqueeze", "Squeeze", "Reshape", "Concat", "Slice", "Constant", "Cast"])
"""Of shapes and layout: they say little about a model's time."""

NAMED_TYPES = 8


def as_is(job: Job) -> Artifact:
    """The standard."""
    return artifact_of(job, job.standard)


def dynamic(job: Job) -> Artifact:
    """``quantize_dynamic`` with its defaults."""
    return _dynamic(job)


def dynamic_channel(job: Job) -> Artifact:
    """``quantize_dynamic`` as its documentation advises for accuracy: per channel, reduced range."""
    return _dynamic(job, per_channel=True, reduce_range=True)


def _dynamic(job: Job, **settings: Any) -> Artifact:  # noqa: ANN401 - the quantizer's own arguments
    """Quantize the file as it is; where the quantizer refuses that, after the preprocessing that it has for this."""
    out = job.folder / "model.onnx"
    try:
        quantize_dynamic(job.standard, out, **settings)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        quantize_dynamic(_prepared(job, job.standard), out, **settings)
        return artifact_of(job, out, f"preprocessed, since without it: {error}")
    return artifact_of(job, out)


def static(job: Job) -> Artifact:
    """``quantize_static`` with its defaults (QDQ, S8S8, MinMax) after the advised preprocessing."""
    return _static(job, job.standard)


def static_channel(job: Job) -> Artifact:
    """``quantize_static`` with what its documentation advises beside that: weights per channel, U8S8."""
    source = _with_operator_set(job, PER_CHANNEL_OPSET)
    return _static(job, source, per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)


def _with_operator_set(job: Job, version: int) -> Path:
    """The standard in this operator set, or in its own where that is newer."""
    model = onnx.load(job.standard)
    if next(entry.version for entry in model.opset_import if not entry.domain) >= version:
        return job.standard
    path = job.folder / "converted.onnx"
    onnx.save(onnx.version_converter.convert_version(model, version), path)
    return path


def _static(job: Job, source: Path, **settings: Any) -> Artifact:  # noqa: ANN401 - the quantizer's own arguments
    out = job.folder / "model.onnx"
    prepared = str(_prepared(job, source))
    quantize_static(prepared, str(out), _Calibration(job), quant_format=QuantFormat.QDQ, **settings)
    return artifact_of(job, out)


def _prepared(job: Job, source: Path) -> Path:
    """Shapes inferred and constants folded. Symbolic inference gives up on some graphs; then it is to be skipped."""
    path = job.folder / "prepared.onnx"
    try:
        quant_pre_process(str(source), str(path))
    except Exception:  # noqa: BLE001 - that is what it raises
        quant_pre_process(str(source), str(path), skip_symbolic_shape=True)
    return path


class _Calibration(CalibrationDataReader):  # type: ignore[misc]  # the runtime ships no types
    """The job's runs, one after the other."""

    def __init__(self, job: Job) -> None:
        self._feeds = iter(job.data.calibration)

    def get_next(self) -> Mapping[str, Array] | None:
        """The next run's inputs."""
        feed = next(self._feeds, None)
        return None if feed is None else dict(feed)


def artifact_of(job: Job, path: Path, note: str = "") -> Artifact:
    """An ONNX file that was made, with what ONNX Runtime really executes of it."""
    variant = Variant("onnxruntime", str(path))
    executed = executed_types(variant, job.threads, job.folder)
    return Artifact(variant, size_on_disk_bytes(read_model(path), path), "; ".join(filter(None, [note, executed])))


def executed_types(variant: Variant, threads: int, folder: Path) -> str:
    """The most frequent operators of the graph that runs, after the runtime's own passes."""
    executed = find_runtime(variant.runtime).executed_graph(variant, threads, folder)
    if not isinstance(executed, Path):
        return executed.reason
    types = Counter(node.op_type for node in onnx.load(executed, load_external_data=False).graph.node)
    executed.unlink()
    (folder / "executed.data").unlink(missing_ok=True)
    named = [f"{count} {name}" for name, count in types.most_common() if name not in QUIET_TYPES]
    return f"{types.total()} nodes: " + ", ".join(named[:NAMED_TYPES])
