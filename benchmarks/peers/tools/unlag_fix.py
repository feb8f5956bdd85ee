"""unlag's own: ``unlag fix`` at the shape that is timed, with the accuracy that peers are compared at."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.contract import Artifact, Job

from unlag import api
from unlag.model.deployment import deployed_variant
from unlag.model.graph import read_model, size_on_disk_bytes
from unlag.model.variant import Variant
from unlag.stages.fixed import Fix

ACCURACY_BUDGET = 0.3
"""Points: what counts as equally accurate here."""


def from_standard(job: Job) -> Artifact:
    """From the standard alone."""
    return _fixed(job, None)


def from_variant(job: Job, start: Variant) -> Artifact:
    """From another variant of the same model."""
    return _fixed(job, start)


def _fixed(job: Job, start: Variant | None) -> Artifact:
    output = job.folder / "fixed"
    fix = api.fix(
        job.subject.standard,
        start,
        output,
        workload=job.subject.workload,
        shapes=str(job.shape),
        threads=job.threads,
        seed=job.seed,
        accuracy_budget=ACCURACY_BUDGET,
        progress=_log,
    )
    variant, _ = deployed_variant(output)
    path = Path(variant.path)
    return Artifact(variant, size_on_disk_bytes(read_model(path), path), _kept(fix))


def _log(what: str, share: float | None = None) -> None:
    """Into the job's log: a fix takes minutes."""
    print(what if share is None else f"{share:4.0%} {what}", flush=True)


def _kept(fix: Fix) -> str:
    """What it decided, by stage."""
    stages = [f"{stage.name}: {', '.join(part.remedy for part in stage.kept)}" for stage in fix.stages if stage.kept]
    return "; ".join([*stages, *fix.notes]) or "nothing was measured to help"
