"""Sketches of tensors: what is kept of each, so that two models' tensors can be told to carry the same values."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from unlag.model.workload import Array

SAMPLED = 4096
"""Elements of a sketch's sample: two unrelated samples of that size correlate at 0.016 on average."""
ROW_TOLERANCE = 1e-2
"""Rows that add up to one within this, without a negative element, are distributions."""


class TensorFacts(msgspec.Struct, frozen=True):
    """What one tensor held in a run of the workload's inputs."""

    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    """Least and largest finite element; zero where there is none."""
    rms: float
    """Root of the mean square of the finite elements."""
    nonfinite: int
    """Elements that are NaN or infinite."""
    entropy: float | None = None
    """Mean entropy of the rows (last axis) in nats, where all rows are distributions: attention weights."""


class TensorSketch(msgspec.Struct, frozen=True):
    """A tensor's facts, and evenly spaced elements of it in flat order: equal positions for equal element counts."""

    facts: TensorFacts
    sample: bytes
    """float32 numbers."""

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The sampled elements, [at most ``SAMPLED``]."""
        return np.frombuffer(self.sample, np.float32)


def sketch_of(array: Array) -> TensorSketch | None:
    """Sketch a tensor of numbers; nothing for texts, sequences and empty tensors."""
    if not isinstance(array, np.ndarray) or array.size == 0 or not _is_number(array):
        return None
    flat = array.reshape(-1).astype(np.float32)
    finite = flat[np.isfinite(flat)]
    facts = TensorFacts(
        shape=array.shape,
        dtype=array.dtype.name,
        low=float(finite.min(initial=0.0)) if finite.size == 0 else float(finite.min()),
        high=float(finite.max(initial=0.0)) if finite.size == 0 else float(finite.max()),
        rms=float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0,
        nonfinite=int(flat.size - finite.size),
        entropy=_entropy(array),
    )
    positions = np.linspace(0, flat.size - 1, min(flat.size, SAMPLED)).astype(np.int64)
    return TensorSketch(facts, flat[positions].tobytes())


def _is_number(array: Array) -> bool:
    return array.dtype.kind in "fiub" or array.dtype.name in {"bfloat16", "float16"}


def _entropy(array: Array) -> float | None:
    if array.ndim < 3 or array.shape[-1] < 2 or "float" not in array.dtype.name:
        return None
    rows = array.reshape(-1, array.shape[-1]).astype(np.float32)
    if not np.isfinite(rows).all() or rows.min() < 0 or np.abs(rows.sum(axis=1) - 1).max() > ROW_TOLERANCE:
        return None
    logarithms = np.log(np.maximum(rows, np.finfo(np.float32).tiny))
    return float(-(rows * logarithms).sum(axis=1).mean())


def write_sketches(path: Path, sketches: dict[str, TensorSketch]) -> None:
    """Write sketches by name."""
    path.write_bytes(msgspec.msgpack.encode(sketches))


def read_sketches(path: Path) -> dict[str, TensorSketch]:
    """Read what ``write_sketches`` wrote, in the same order."""
    return msgspec.msgpack.decode(path.read_bytes(), type=dict[str, TensorSketch])
