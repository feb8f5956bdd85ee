"""Scores in points, 0 to 100, higher is better."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def spearman(predictions: FloatArray, labels: FloatArray) -> float:
    """Spearman's rank correlation x 100; 0 where one side is constant and ranks nothing."""
    from scipy.stats import spearmanr  # noqa: PLC0415 - slow to import

    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return 100.0 * float(spearmanr(predictions, labels).statistic)


def side_accuracy(predictions: FloatArray, labels: FloatArray) -> float:
    """Share of items whose margin is on the side of its label (1 or 0), in %."""
    return 100.0 * float(np.mean((predictions > 0) == (labels > 0.5)))


def class_accuracy(predictions: FloatArray, labels: FloatArray) -> float:
    """Share of items whose class is the label, in %."""
    return 100.0 * float(np.mean(predictions == labels))
