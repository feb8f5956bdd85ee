"""The user's own inputs: arrays by input name in an ``.npz`` file, with ``labels`` for a score.

Without labels the arrays are one feed as they are. With labels, the first axis is the items: it is cut into
feeds of the asked batch size. Whole-numbered labels are classes, scored by accuracy of the first output's largest
entry; fractional ones are ratings, scored by Spearman's rank correlation with the first output, one number an item.

Static quantization takes its ranges from rows of the arrays that are named as the inputs with ``calibration.`` in front
(just ``calibration`` for a model of one input), or else from the file's own rows.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from unlag.errors import UsageError
from unlag.model.workload import Array, Evaluation, Feed, Rows, TensorInfo, Workload, WorkloadRequest
from unlag.workloads._feeds import fit_feed, fixed_size, shape_text
from unlag.workloads._scores import class_accuracy, spearman

LABELS = "labels"
CALIBRATION = "calibration"
AGREEMENT_FEEDS = 8
CALIBRATION_FEEDS = 32

FloatArray = npt.NDArray[np.float64]


def load(request: WorkloadRequest) -> Workload:
    """The workload in the file that ``request.argument`` names.

    Raises:
        UsageError: the file can't be read, or doesn't fit the model.
    """
    arrays = _read(request.argument)
    takes_labels = any(info.name == LABELS for info in request.signature.inputs)  # as models for training do
    labels = None if takes_labels else arrays.pop(LABELS, None)
    others = _take_calibration(arrays, request)
    feed = fit_feed(arrays, request.signature, request.argument, any_batch=labels is not None)
    if labels is None:
        made = Workload(name="npz", shape=shape_text(feed), feed=feed, agreement=(feed,))
    else:
        made = _labeled(feed, labels, request)
    return replace(made, calibration=_calibration(made, others, request))


def _take_calibration(arrays: dict[str, Array], request: WorkloadRequest) -> Feed | None:
    """The rows to calibrate on, out of the arrays that are read; nothing where the file has none.

    Raises:
        UsageError: some inputs have them, others don't, or they don't fit.
    """
    inputs = [info.name for info in request.signature.inputs]
    if CALIBRATION in inputs:
        return None
    names = {name: f"{CALIBRATION}.{name}" for name in inputs}
    if len(inputs) == 1 and CALIBRATION in arrays:
        names = {inputs[0]: CALIBRATION}
    rows = {name: arrays.pop(own) for name, own in names.items() if own in arrays}
    return fit_feed(rows, request.signature, f"{request.argument}: {CALIBRATION}", any_batch=True) if rows else None


def _calibration(made: Workload, others: Feed | None, request: WorkloadRequest) -> Sequence[Feed]:
    """Feeds of the timed feed's batch; of the timed one itself, where there are no more rows."""
    if others is None:
        feeds = made.evaluation.feeds if made.evaluation is not None else made.agreement
        return tuple(feeds[:CALIBRATION_FEEDS])
    rows = min((len(array) for array in others.values() if array.ndim), default=1)
    batch = _fixed_batch(request) or min(rows, request.shape.batch)
    starts = range(0, rows - batch + 1, batch)[:CALIBRATION_FEEDS]
    return tuple(_take(others, np.arange(start, start + batch)) for start in starts)


def _read(path: str) -> dict[str, Array]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise UsageError(f"{path} is one array, not an .npz of arrays by name")
        with file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(
            f"can't read {path}: {error}", hint="write it with numpy.savez(path, input_name=array)"
        ) from error


def _labeled(items: Feed, labels: Array, request: WorkloadRequest) -> Workload:
    _check_labels(items, labels, request)
    count = len(labels)
    fixed = _fixed_batch(request)
    batch = fixed or min(request.shape.batch, count)
    chunks = [np.arange(start, start + batch) for start in range(0, count, batch)]
    if fixed is None:
        chunks = [chunk[chunk < count] for chunk in chunks]
    # A fixed batch is filled up with its last item again, whose rows are not scored.
    kept = np.concatenate(chunks) < count
    feeds = [_take(items, np.minimum(chunk, count - 1)) for chunk in chunks]
    evaluation = Evaluation(
        metric="Spearman" if labels.dtype.kind == "f" else "accuracy",
        feeds=feeds,
        reduction="none",
        labels=labels.astype(np.float64),
        predict=lambda rows, _: (_ratings if labels.dtype.kind == "f" else _classes)(rows[kept]),
        score=spearman if labels.dtype.kind == "f" else class_accuracy,
        rows_of=np.flatnonzero(kept)[:, None],
    )
    return Workload("npz", shape_text(feeds[0]), feeds[0], feeds[:AGREEMENT_FEEDS], evaluation)


def _take(items: Feed, indices: npt.NDArray[np.int64]) -> Feed:
    return {name: array[indices] if array.ndim else array for name, array in items.items()}


def _classes(rows: Rows) -> FloatArray:
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise UsageError(
            "whole-numbered labels are classes, but the model gives one number an item",
            hint="store the labels as floats to score them by rank correlation",
        )
    return np.array(rows.argmax(axis=1), np.float64)


def _ratings(rows: Rows) -> FloatArray:
    numbers = rows.reshape(len(rows), -1)
    if numbers.shape[1] != 1:
        raise UsageError(
            f"fractional labels are ratings, but the model gives {numbers.shape[1]} numbers an item",
            hint="store class labels as integers",
        )
    return np.nan_to_num(np.array(numbers[:, 0], np.float64))


def _check_labels(items: Feed, labels: Array, request: WorkloadRequest) -> None:
    path = request.argument
    if labels.ndim != 1 or labels.dtype.kind not in "iufb" or not len(labels):
        found = f"{labels.dtype} of shape {list(labels.shape)}"
        raise UsageError(f"{path}: labels are {found}; one number an item is needed")
    if not np.isfinite(labels.astype(np.float64)).all():
        raise UsageError(f"{path}: some labels are not finite")
    for name, array in items.items():
        if array.ndim and len(array) != len(labels):
            raise UsageError(f"{path}: {name} has {len(array)} items and labels {len(labels)}")
    if request.signature.outputs:
        _check_output(request.signature.outputs[0], labels, path)


def _check_output(output: TensorInfo, labels: Array, path: str) -> None:
    if output.shape is None:
        return
    if len(output.shape) not in (1, 2):
        raise UsageError(f"{path}: labels need one row an item; {output.name} is of rank {len(output.shape)}")
    width = output.shape[-1] if len(output.shape) == 2 else 1
    if not isinstance(width, int) or labels.dtype.kind == "f":
        return
    least, largest = int(labels.min()), int(labels.max())
    if width > 1 and (least < 0 or largest >= width):
        raise UsageError(f"{path}: labels go from {least} to {largest}; the model has {width} classes")


def _fixed_batch(request: WorkloadRequest) -> int | None:
    """The batch size that the model or the user fixes."""
    shaped = [info.shape for info in request.signature.inputs if info.shape]
    return fixed_size(shaped[0][0], request) if shaped else None
