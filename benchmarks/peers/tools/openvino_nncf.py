"""OpenVINO's conversion, and NNCF's quantization of the converted model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import nncf
import openvino as ov
from benchmarks.peers.contract import Artifact, Job
from benchmarks.peers.runtimes.openvino import config_of

from unlag.model.variant import Variant
from unlag.model.workload import Feed

MOST_LOST = 0.3
"""Points that the accuracy control may lose: what counts as equally accurate here."""


def converted(job: Job) -> Artifact:
    """The standard in OpenVINO's own format; the runtime chooses in which precision it computes."""
    return _saved(job, ov.convert_model(job.standard))


def converted_f32(job: Job) -> Artifact:
    """The same, held to float32: on CPUs with bfloat16 arithmetic the runtime takes that by itself."""
    return _saved(job, ov.convert_model(job.standard), precision="f32")


def converted_fixed(job: Job) -> Artifact:
    """The standard, with its own choice of precision, for one shape only: dynamic shapes cost the runtime time."""
    return _fixed(job, ov.convert_model(job.standard))


def quantized(job: Job) -> Artifact:
    """Post-training quantization with NNCF's defaults."""
    return _saved(job, _quantized(job))


def quantized_fixed(job: Job) -> Artifact:
    """The same for one shape only."""
    return _fixed(job, _quantized(job))


def _quantized(job: Job) -> ov.Model:
    runs = nncf.Dataset(job.data.calibration, dict)
    return nncf.quantize(ov.convert_model(job.standard), runs, model_type=_model_type(job))


def accuracy_controlled(job: Job) -> Artifact:
    """The same, with layers taken back to float until at most the allowed points are lost."""
    validation = job.data.validation

    def validate(model: ov.CompiledModel, feeds: Iterable[Feed]) -> tuple[float, None]:
        request = model.create_infer_request()
        return validation.judge([request.infer(dict(feed))[0].copy() for feed in feeds]), None

    model = nncf.quantize_with_accuracy_control(
        ov.convert_model(job.standard),
        nncf.Dataset(job.data.calibration, dict),
        nncf.Dataset(validation.feeds, dict),
        validate,
        max_drop=MOST_LOST,
        model_type=_model_type(job),
    )
    return _saved(job, model)


def _model_type(job: Job) -> nncf.ModelType | None:
    return nncf.ModelType.TRANSFORMER if job.subject.kind == "transformer" else None


def _fixed(job: Job, model: ov.Model) -> Artifact:
    """The model at the job's shape. What it computes is scored with all shapes, or long texts would be cut."""
    plain = _saved(job, model, name="plain").variant
    sizes = {name: list(array.shape) for name, array in job.data.calibration[0].items()}
    if job.subject.kind == "transformer":
        sizes = {name: [job.shape.batch, job.shape.sequence] for name in sizes}
    model.reshape(sizes)
    return msgspec.structs.replace(_saved(job, model), plain=plain)


def _saved(job: Job, model: ov.Model, *, name: str = "model", **options: str) -> Artifact:
    path = job.folder / f"{name}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    size_bytes = path.stat().st_size + path.with_suffix(".bin").stat().st_size
    variant = Variant("openvino", str(path), options)
    return Artifact(variant, size_bytes, _executed(variant, job.threads))


def _executed(variant: Variant, threads: int) -> str:
    """In which precisions the runtime computes this model's operators here."""
    compiled = ov.compile_model(variant.path, "CPU", config_of(variant, threads))
    counted: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        if "layerType" in facts and str(facts["layerType"].value) in COSTLY_LAYERS:
            counted[f"{facts['layerType'].value} in {facts['runtimePrecision'].value}"] += 1
    return ", ".join(f"{count} {what}" for what, count in counted.most_common())


COSTLY_LAYERS = frozenset(["FullyConnected", "MatMul", "Convolution", "GroupConvolution", "Subgraph", "MHA", "SDPA"])
"""Where most of the time goes."""
