"""Requests as a text encoder makes them, and a plain ONNX Runtime run of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from unlag.model.workload import (
    Dimension,
    Evaluation,
    Rows,
    Shape,
    Signature,
    TensorInfo,
    WorkloadRequest,
)

TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HIDDEN = TensorInfo("last_hidden_state", "float32", ("batch", "sequence", 384))


def encoder_request(
    *,
    names: tuple[str, ...] = TEXT_INPUTS,
    shape: tuple[Dimension, ...] | None = ("batch", "sequence"),
    dtype: str = "int64",
    asked: Shape = Shape(1, 128),  # noqa: B008 - frozen
    output: TensorInfo = HIDDEN,
    dims: Mapping[str, int] | None = None,
    limits: Mapping[str, int] | None = None,
    seed: int = 0,
) -> WorkloadRequest:
    inputs = tuple(TensorInfo(name, dtype, shape) for name in names)
    return WorkloadRequest("", Signature(inputs, (output,)), asked, dims or {}, seed, limits or {})


def rows_of(session: Any, evaluation: Evaluation) -> Rows:
    """What a worker does: run every feed, reduce the first output and stack the rows."""
    found = []
    for feed in evaluation.feeds:
        output: npt.NDArray[np.float32] = session.run(None, dict(feed))[0]
        if evaluation.reduction == "mean_pool":
            mask = feed["attention_mask"][..., None].astype(np.float32)
            output = (output * mask).sum(axis=1) / mask.sum(axis=1)
        found.append(output)
    return np.concatenate(found)
