"""Which of the standard's weights a variant's weight is: by values, never by names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.observe.evidence import WeightSource
from unlag.rewrites.stored_weights import Weight, read_weights

CORRELATION = 0.5
"""Matrices of different layers correlate at 0.01 or so. int8 with one scale for MiniLM's output projections, whose
largest weight is 100 times the typical one, reaches 0.93; with a scale four times too large, 0.6."""
SLOPE = (0.85, 1.15)
"""Least-squares factor between the two: a projection with the attention scale folded in is another matrix. Codes so
coarse that small weights become zero keep the square of the correlation; the lower end is a share of that."""
SAMPLED_ROWS = 64
COMPARED_ELEMENTS = 1_000_000
"""The final comparison looks at whole rows, evenly spaced, up to about this many elements."""

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Candidate:
    """A matrix of the standard, with a few rows of it to look at first."""

    name: str
    matrix: npt.NDArray[np.generic]
    sample: Matrix


def align_weights(standard: ir.Model, variant: ir.Model) -> dict[str, WeightSource]:
    """Where the standard keeps each weight that the variant reads, by the name of the value that is read.

    A variant's matrix may equal a whole matrix of the standard or a range of its columns (packed projections).
    What is nowhere in the standard, or is packed from several of its matrices, is left out.
    """
    candidates: dict[int, list[_Candidate]] = {}
    for weight in read_weights(standard):
        matrix = weight.matrix()
        if matrix is not None:
            candidates.setdefault(matrix.shape[0], []).append(
                _Candidate(str(weight.read.name), matrix, _rows(matrix, SAMPLED_ROWS))
            )
    found: dict[str, WeightSource] = {}
    for weight in read_weights(variant):
        source = _find(weight, candidates)
        if source is not None:
            found[str(weight.read.name)] = source
    return found


def _rows(matrix: npt.NDArray[np.generic], count: int) -> Matrix:
    """Rows of the matrix, evenly spaced."""
    step = max(1, matrix.shape[0] // max(1, count))
    return matrix[::step].astype(np.float32)


def _find(weight: Weight, candidates: dict[int, list[_Candidate]]) -> WeightSource | None:
    matrix = weight.matrix()
    if matrix is None:
        return None
    sample = _rows(matrix, SAMPLED_ROWS)
    column = int(np.argmax(np.square(sample).sum(axis=0)))
    for candidate in candidates.get(matrix.shape[0], ()):
        start = _start(sample[:, column], candidate.sample) - column
        stop = start + matrix.shape[1]
        if start < 0 or stop > candidate.matrix.shape[1]:
            continue
        if _same(sample, candidate.sample[:, start:stop]) and _same_all(matrix, candidate.matrix[:, start:stop]):
            return WeightSource(candidate.name, start, stop)
    return None


def _start(column: Matrix, sample: Matrix) -> int:
    """The column of the sample that points the same way as ``column``."""
    lengths = np.sqrt(np.square(sample).sum(axis=0))
    return int(np.argmax((column @ sample) / np.maximum(lengths, np.finfo(np.float32).tiny)))


def _same_all(ours: npt.NDArray[np.generic], theirs: npt.NDArray[np.generic]) -> bool:
    count = COMPARED_ELEMENTS // max(1, ours.shape[1])
    return _same(_rows(ours, count), _rows(theirs, count))


def _same(ours: Matrix, theirs: Matrix) -> bool:
    a, b = ours.ravel(), theirs.ravel()
    product, own, other = float(a @ b), float(a @ a), float(b @ b)
    if own == 0 or other == 0:
        return False
    correlation, slope = product / float(np.sqrt(own * other)), product / other
    return correlation > CORRELATION and SLOPE[0] * correlation**2 < slope < SLOPE[1]
