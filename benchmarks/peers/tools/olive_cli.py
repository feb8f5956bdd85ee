"""Microsoft Olive's command line on an ONNX file, for the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.peers.contract import Artifact, Job
from benchmarks.peers.tools.ort_quantizer import artifact_of

from unlag.errors import UsageError

PROVIDER = "CPUExecutionProvider"

LONGEST_REASON = 300
"""Characters of what Olive printed that are kept."""


def quantize(job: Job) -> Artifact:
    """``olive quantize`` in int8; of its implementations, ONNX Runtime's takes an ONNX file."""
    return _run(job, "quantize", "--implementation", "ort", "--precision", "int8")


def optimize(job: Job) -> Artifact:
    """``olive optimize`` in int8."""
    return _run(job, "optimize", "--provider", PROVIDER, "--device", "cpu", "--precision", "int8", "--use_qdq_format")


def optimize_float32(job: Job) -> Artifact:
    """``olive optimize`` in float32; the exporter is named because it decides whether transformers are fused."""
    settings = ("--precision", "fp32", "--exporter", "dynamo_exporter")
    return _run(job, "optimize", "--provider", PROVIDER, "--device", "cpu", *settings)


def auto_opt(job: Job) -> Artifact:
    """``olive auto-opt`` in int8: peephole optimizer, transformer optimizer, dynamic quantization."""
    return _run(job, "auto-opt", "--provider", PROVIDER, "--device", "cpu", "--precision", "int8")


def _run(job: Job, command: str, *settings: str) -> Artifact:
    """Run it in a folder of its own, offline unless HF_HUB_OFFLINE says otherwise: it looks for data sets in a hub.

    Raises:
        UsageError: it fails, or leaves no model, with its own last words.
    """
    out = job.folder / "model"
    place = ("--model_name_or_path", str(job.standard), "--output_path", str(out))
    done = subprocess.run(  # noqa: S603 - a fixed command
        [sys.executable, "-m", "olive", command, *place, *settings],
        cwd=job.folder,
        env={"OLIVE_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"} | os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    made = sorted(out.rglob("*.onnx"))
    if done.returncode or not made:
        raise UsageError(f"olive {command} made no model: {_last_words(done.stdout + done.stderr)}")
    return artifact_of(job, made[0], f"olive {command} {' '.join(settings)}")


def _last_words(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line]
    return (errors or lines or ["it printed nothing"])[-1][:LONGEST_REASON]
