"""Checks a feed that a user brings against the model's signature."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unlag.errors import UsageError
from unlag.model.workload import Array, Dimension, Feed, Signature, TensorInfo, WorkloadRequest


def element_type(info: TensorInfo) -> np.dtype[np.generic]:
    """Numpy's type for an input.

    Raises:
        UsageError: text or another type that no array of numbers holds.
    """
    if info.dtype == "string":
        return np.dtype(np.str_)
    if info.dtype == "bfloat16" or info.dtype.startswith(("float8", "int4", "uint4")):
        import ml_dtypes  # noqa: PLC0415 - only for types that numpy lacks

        small: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, info.dtype))
        return small
    try:
        return np.dtype(info.dtype)
    except TypeError as error:
        raise UsageError(
            f"input {info.name!r} is of type {info.dtype}, which unlag can't make",
            hint="export the model with tensors of numbers or text as inputs",
        ) from error


def shape_text(feed: Feed) -> str:
    """Sizes of the first array that has any, such as ``1x3x224x224``."""
    return next(("x".join(map(str, array.shape)) for array in feed.values() if array.ndim), "scalar")


def fixed_size(dimension: Dimension, request: WorkloadRequest) -> int | None:
    """A dimension's size where the model or the user (``--dim``) fixes it."""
    return request.dims.get(dimension) if isinstance(dimension, str) else dimension


def fit_feed(arrays: Mapping[str, Array], signature: Signature, source: str, *, any_batch: bool = False) -> Feed:
    """The arrays as the model takes them, in its types.

    Args:
        arrays: by input name.
        signature: of the model.
        source: where the arrays come from, for messages.
        any_batch: leave the first axis unchecked, because it is cut into feeds later.

    Raises:
        UsageError: a name, type, rank or size that the model doesn't take.
    """
    expected = [info.name for info in signature.inputs]
    missing = [name for name in expected if name not in arrays]
    unknown = [name for name in arrays if name not in expected]
    if missing or unknown:
        raise UsageError(
            f"{source} has arrays {', '.join(sorted(arrays)) or '(none)'}; the model takes {', '.join(expected)}",
            hint="name each array as the model names its input",
        )
    return {info.name: _fit(arrays[info.name], info, source, any_batch=any_batch) for info in signature.inputs}


def _fit(array: Array, info: TensorInfo, source: str, *, any_batch: bool) -> Array:
    if info.shape is not None:
        _check_shape(array.shape, info.shape, f"{source}: {info.name}", any_batch=any_batch)
    wanted = element_type(info)
    if array.dtype == wanted or array.dtype.kind == wanted.kind == "U":
        return np.asarray(array, order="C")
    if array.dtype.kind in "iufb" and np.can_cast(array.dtype, wanted, casting="safe"):
        return np.asarray(array.astype(wanted), order="C")
    raise UsageError(
        f"{source}: {info.name} is {array.dtype}; the model takes {info.dtype}",
        hint=f"convert it yourself, if nothing is lost: array.astype('{info.dtype}')",
    )


def _check_shape(found: tuple[int, ...], expected: tuple[Dimension, ...], what: str, *, any_batch: bool) -> None:
    differs = len(found) != len(expected) or any(
        isinstance(size, int) and size != have and not (any_batch and axis == 0)
        for axis, (have, size) in enumerate(zip(found, expected, strict=False))
    )
    if differs:
        shape = ", ".join("?" if size is None else str(size) for size in expected)
        raise UsageError(f"{what} is of shape [{', '.join(map(str, found))}]; the model takes [{shape}]")
    if 0 in found[1 if any_batch else 0 :] and 0 not in expected:
        raise UsageError(f"{what} is empty: its shape is [{', '.join(map(str, found))}]")
