"""Inputs drawn at random to fit the model's signature: for speed and agreement, never for accuracy.

Dynamic sizes come from ``--dim NAME=VALUE`` or else from what their names and places say: batch, sequence, the
past of a decoder (which then gets one new token), or the side of an image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from unlag.errors import UsageError
from unlag.model.workload import Array, Dimension, Feed, Shape, TensorInfo, Workload, WorkloadRequest
from unlag.workloads._feeds import element_type, fixed_size, shape_text

IMAGE_SIDE = 224
"""Usual side of an image for classifiers, in pixels."""

UNKNOWN_LIMIT = 100
"""Upper bound of integers where nothing is known: small enough for any vocabulary that is worth measuring."""

AGREEMENT_FEEDS = 3
CALIBRATION_FEEDS, CALIBRATION_BYTES = 16, 64_000_000
"""Runs to take ranges from: so many, or fewer where they would take more memory than that."""
MOST_NAMED = 6
"""Inputs that a message names; a decoder has dozens."""

WORDS = np.array(["a", "red", "seven", "river", "unlag", "2026", "New York", ""])
"""What inputs of text are drawn from."""

_BATCH = re.compile(r"batch|^[nb]$|^bs$", re.IGNORECASE)
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_TOTAL = re.compile(r"\+|total", re.IGNORECASE)
_SEQUENCE = re.compile(r"seq|len|token|time|^[tsl]$", re.IGNORECASE)
_SIDE = re.compile(r"height|width|^[hw]$", re.IGNORECASE)
_ENCODER = re.compile(r"encoder", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_SEGMENT = re.compile(r"token_type|segment", re.IGNORECASE)
_POSITION = re.compile(r"position", re.IGNORECASE)
_LENGTH = re.compile(r"len", re.IGNORECASE)


def load(request: WorkloadRequest) -> Workload:
    """Random inputs for any model whose sizes are known or can be told.

    Raises:
        UsageError: a dynamic size that nothing tells, or a type that can't be drawn.
    """
    for info in request.signature.inputs:
        element_type(info)
    sizes = _Sizes(request)
    shapes = {info.name: sizes.of(info) for info in request.signature.inputs}
    feeds = [_draw(request, shapes, sizes.past, request.seed + offset) for offset in range(1 + AGREEMENT_FEEDS)]
    shape = str(request.shape) if sizes.past else shape_text(feeds[0])
    return Workload(
        name="random",
        shape=shape,
        feed=feeds[0],
        agreement=tuple(feeds[1:]),
        calibration=_calibration(request),
        invented=_invented(feeds[0]),
    )


def _calibration(request: WorkloadRequest) -> tuple[Feed, ...]:
    """Feeds of one row each, where the model lets that be."""
    request = replace(request, shape=Shape(1, request.shape.sequence))
    sizes = _Sizes(request)
    shapes = {info.name: sizes.of(info) for info in request.signature.inputs}
    first = request.seed + 1 + AGREEMENT_FEEDS
    feeds = [_draw(request, shapes, sizes.past, first)]
    feed_bytes = sum(array.nbytes for array in feeds[0].values())
    count = min(CALIBRATION_FEEDS, CALIBRATION_BYTES // max(1, feed_bytes))
    feeds += [_draw(request, shapes, sizes.past, first + number) for number in range(1, count)]
    return tuple(feeds)


def _invented(feed: Feed) -> str:
    """The inputs with their types and sizes."""
    named = [f"{name} {array.dtype} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in feed.items()]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return ", ".join(named[:MOST_NAMED]) + more


def integer_limit(request: WorkloadRequest, name: str) -> int:
    """Exclusive upper bound of the integers for an input."""
    return request.limits.get(name, UNKNOWN_LIMIT)


class _Sizes:
    """Resolves dynamic dimensions, each name to one size in all inputs."""

    def __init__(self, request: WorkloadRequest) -> None:
        self.request = request
        has_past = any(_is_past(info) for info in request.signature.inputs)
        self.past = request.shape.sequence if has_past else 0
        """Tokens that a decoder has behind it."""
        self.current = 1 if has_past else request.shape.sequence
        """Tokens that it is given."""
        self.by_name: dict[str, int] = {}

    def of(self, info: TensorInfo) -> tuple[int, ...]:
        """Sizes of an input.

        Raises:
            UsageError: nothing tells one of them.
        """
        if info.shape is None:
            raise UsageError(f"the model doesn't say the rank of {info.name}", hint="use --workload FILE.npz")
        return tuple(self._size(info, info.shape, axis) for axis in range(len(info.shape)))

    def _size(self, info: TensorInfo, shape: tuple[Dimension, ...], axis: int) -> int:
        dimension = shape[axis]
        place = f"{info.name}.{axis}"
        told = self.request.dims.get(place, fixed_size(dimension, self.request))
        if told is not None:
            return told
        name = dimension if isinstance(dimension, str) else ""
        if name in self.by_name:
            return self.by_name[name]
        size = self._by_dimension_name(info, name)
        if size is None:
            size = self._by_place(info, shape, axis)
        if size is None:
            what = f"axis {axis} of {info.name}" + (f" ({name})" if name else "")
            raise UsageError(f"nothing tells the size of {what}", hint=f"say it with --dim {name or place}=VALUE")
        if name:
            self.by_name[name] = size
        return size

    def _by_dimension_name(self, info: TensorInfo, name: str) -> int | None:
        if _BATCH.search(name):
            return self.request.shape.batch
        if _ENCODER.search(name) and _SEQUENCE.search(name):
            return self.request.shape.sequence
        if _TOTAL.search(name) and (_PAST.search(name) or _SEQUENCE.search(name)):
            return self.past + self.current
        if _PAST.search(name):
            return self.past
        if _SIDE.search(name):
            return IMAGE_SIDE
        return self._tokens(info) if _SEQUENCE.search(name) else None

    def _by_place(self, info: TensorInfo, shape: tuple[Dimension, ...], axis: int) -> int | None:
        if axis == 0:
            return self.request.shape.batch
        if _is_past(info):
            return self.past
        kind = element_type(info).kind
        if len(shape) == 2 and (kind in "iub" or _MASK.search(info.name)):
            return self._tokens(info)
        is_channels_last = shape[-1] in (1, 3, 4)
        if len(shape) == 4 and (axis in (1, 2) if is_channels_last else axis in (2, 3)):
            return IMAGE_SIDE
        return None

    def _tokens(self, info: TensorInfo) -> int:
        if _is_past(info):
            return self.past
        return self.past + self.current if _MASK.search(info.name) else self.current


def _is_past(info: TensorInfo) -> bool:
    return _PAST.search(info.name) is not None and info.shape is not None and len(info.shape) > 2


def _draw(request: WorkloadRequest, shapes: Mapping[str, tuple[int, ...]], past: int, seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    return {info.name: _array(request, info, shapes[info.name], past, rng) for info in request.signature.inputs}


def _array(
    request: WorkloadRequest, info: TensorInfo, shape: tuple[int, ...], past: int, rng: np.random.Generator
) -> Array:
    kind = element_type(info)
    if kind.kind == "b" or _MASK.search(info.name):
        return np.ones(shape, kind)
    if kind.kind in "iu":
        return _integers(request, info, shape, past, rng).astype(kind)
    if kind.kind in {"f", "V"}:  # V: the types of ml_dtypes
        return np.asarray(rng.standard_normal(shape), np.float32).astype(kind)
    if info.dtype == "string":
        return rng.choice(WORDS, shape)
    raise UsageError(f"random {info.dtype} can't be drawn for {info.name}", hint="use --workload FILE.npz")


def _integers(
    request: WorkloadRequest, info: TensorInfo, shape: tuple[int, ...], past: int, rng: np.random.Generator
) -> Array:
    limit = integer_limit(request, info.name)
    if _SEGMENT.search(info.name):
        return np.zeros(shape, np.int64)
    if _POSITION.search(info.name) and shape:
        positions = past + np.arange(shape[-1])
        return np.broadcast_to(np.minimum(positions, request.limits.get(info.name, positions.max() + 1) - 1), shape)
    if _LENGTH.search(info.name) and len(shape) < 2:
        new = 1 if past and _TOTAL.search(info.name) else 0
        return np.full(shape, request.shape.sequence + new, np.int64)
    if info.dtype == "uint8" and info.name not in request.limits:
        limit = 256
    return np.asarray(rng.integers(0, min(limit, np.iinfo(info.dtype).max + 1), shape))
