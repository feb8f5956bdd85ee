"""ONNX Runtime's transformer optimizer, then its quantizer: what its documentation advises for BERTs."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from benchmarks.peers.contract import Artifact, Job
from benchmarks.peers.tools.ort_quantizer import artifact_of
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model


def optimized_dynamic(job: Job) -> Artifact:
    """Fuse, then quantize per channel with a reduced range."""
    fused, out = job.folder / "fused.onnx", job.folder / "model.onnx"
    heads, hidden = _sizes(Path(job.subject.checkpoint or ""))
    model = optimize_model(str(job.standard), model_type="bert", num_heads=heads, hidden_size=hidden)
    model.save_model_to_file(str(fused))
    # the quantizer can't tell types behind the optimizer's own operators, and asks for this option then
    float32 = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(fused, out, per_channel=True, reduce_range=True, extra_options=float32)
    fused.unlink()
    counted = model.get_fused_operator_statistics()
    return artifact_of(job, out, "fused: " + ", ".join(f"{n} {name}" for name, n in counted.items() if n))


def _sizes(checkpoint: Path) -> tuple[int, int]:
    """Attention heads and hidden width, which the optimizer can't find out by itself in all graphs."""
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    return int(config["num_attention_heads"]), int(config["hidden_size"])
