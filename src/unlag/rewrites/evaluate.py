"""Small pieces of a graph, run in numpy on facts alone: shapes, layouts, masks, scalars.

Exporters spell a head split or a mask in many ways. Instead of matching each spelling, the piece is fed with
numbered elements and its result is looked at. Only operators that move, compare or count are known here;
anything else, and any weight, makes the result unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import Attribute, Constant, GraphIndex, Node

Array = npt.NDArray[np.generic]
Attributes = Mapping[str, Attribute]

_MOST_NODES = 200
"""A layout or a mask has a few dozen nodes; more is no small piece."""

_MOST_ELEMENTS = 1 << 22


class Evaluator:
    """Values of a graph, given some of them."""

    def __init__(self, index: GraphIndex, feeds: Mapping[str, Array]) -> None:
        self._index = index
        self._known: dict[str, Array | None] = dict(feeds)

    def value(self, name: str) -> Array | None:
        """The array of that name, or nothing where it can't be told."""
        order = self._order(name)
        if order is None:
            return None
        for node in order:
            self._run(node)
        return self._get(name)

    def scalar(self, name: str) -> float | None:
        """The only element of the array of that name."""
        array = self.value(name)
        return (
            float(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype != np.bool_ else None
        )

    def _get(self, name: str) -> Array | None:
        if name not in self._known:
            constant = self._index.constant(name)
            array = None if constant is None else _constant_array(constant)
            self._known[name] = self._index.stored(name) if array is None and constant is not None else array
        return self._known[name]

    def _order(self, name: str) -> list[Node] | None:
        """Nodes to run for ``name``, in order; nothing if there are too many or one is not known here."""
        order: dict[str, Node] = {}
        stack = [name]
        while stack:
            current = stack[-1]
            node = self._index.producer(current)
            if node is None or current in self._known or current in order:
                stack.pop()
                continue
            if node.domain or node.op_type not in _OPERATORS or len(order) > _MOST_NODES or len(stack) > _MOST_NODES:
                return None
            waiting = [
                i for i in node.inputs if i and i not in self._known and i not in order and self._index.producer(i)
            ]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            order[current] = node
        return list(order.values())

    def _run(self, node: Node) -> None:
        inputs = [self._get(name) if name else None for name in node.inputs]
        results: Sequence[Array | None] = [None] * len(node.outputs)
        if all(array is not None for array, name in zip(inputs, node.inputs, strict=True) if name):
            # shapes that don't fit the numbers fed are unknown, like everything else that can't be told
            with suppress(ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError):
                results = _OPERATORS[node.op_type](inputs, node)
        for name, array in zip(node.outputs, results, strict=False):
            self._known[name] = array if array is None or array.size <= _MOST_ELEMENTS else None


def _constant_array(constant: Constant) -> Array | None:
    if constant.values is None:
        return None
    try:
        dtype = np.dtype(constant.dtype)
    except TypeError:
        return None
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = [min(max(int(v), limits.min), limits.max) for v in constant.values]
        return np.array(whole, dtype).reshape(constant.shape)
    with np.errstate(over="ignore"):  # facts hold an infinite element as the largest float64
        return np.array(constant.values).astype(dtype).reshape(constant.shape)


Operator = Callable[[Sequence[Array | None], Node], Sequence[Array | None]]


def _one(function: Callable[..., Array]) -> Operator:
    """An operator of its inputs alone."""

    def run(inputs: Sequence[Array | None], _node: Node) -> Sequence[Array | None]:
        with np.errstate(all="ignore"):
            return [np.asarray(function(*inputs))]

    return run


def _with(function: Callable[..., Array]) -> Operator:
    """An operator of its attributes and its inputs."""

    def run(inputs: Sequence[Array | None], node: Node) -> Sequence[Array | None]:
        return [np.asarray(function(node.attributes, *inputs))]

    return run


def _ints(array: Array) -> list[int]:
    return [int(v) for v in array.reshape(-1)]


def _listed(attributes: Attributes, name: str) -> list[int] | None:
    value = attributes.get(name)
    return [int(v) for v in value] if isinstance(value, list) else None


def _axes(attributes: Attributes, axes: Array | None) -> list[int] | None:
    return _listed(attributes, "axes") if axes is None else _ints(axes)


def _integer(attributes: Attributes, name: str, default: int) -> int:
    value = attributes.get(name, default)
    return value if isinstance(value, int) else default


def _cast(attributes: Attributes, x: Array) -> Array:
    target: np.dtype[np.generic] = np.dtype(ir.DataType(_integer(attributes, "to", 1)).numpy())
    return x.astype(target)


def _reshape(attributes: Attributes, x: Array, shape: Array) -> Array:
    sizes = _ints(shape)
    if not _integer(attributes, "allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def _shape(attributes: Attributes, x: Array) -> Array:
    return np.array(x.shape[_integer(attributes, "start", 0) : _integer(attributes, "end", x.ndim)], np.int64)


def _slice(attributes: Attributes, x: Array, *parts: Array | None) -> Array:
    starts, ends, axes, steps = (*(None if p is None else _ints(p) for p in parts), None, None)[:4]
    if starts is None:
        starts, ends, axes = (_listed(attributes, name) for name in ("starts", "ends", "axes"))
    if starts is None or ends is None:
        raise ValueError("a Slice without bounds")
    index = [slice(None)] * x.ndim
    for i, axis in enumerate(axes or range(len(starts))):
        step = steps[i] if steps else 1
        if step < 1:
            raise ValueError("a Slice that runs backwards")
        index[axis] = slice(starts[i], ends[i], step)
    return x[tuple(index)]


def _gather(attributes: Attributes, x: Array, indices: Array) -> Array:
    return np.take(x, indices.astype(np.int64), axis=_integer(attributes, "axis", 0))


def _gather_nd(attributes: Attributes, x: Array, indices: Array) -> Array:
    if _integer(attributes, "batch_dims", 0):
        raise ValueError("batched GatherND")
    picked: Array = x[tuple(np.moveaxis(indices.astype(np.int64), -1, 0))]
    return picked


def _squeeze(attributes: Attributes, x: Array, axes: Array | None = None) -> Array:
    given = _axes(attributes, axes)
    return np.squeeze(x, None if given is None else tuple(given))


def _unsqueeze(attributes: Attributes, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(_axes(attributes, axes) or ()))


def _split(inputs: Sequence[Array | None], node: Node) -> Sequence[Array | None]:
    x, axis = inputs[0], _integer(node.attributes, "axis", 0)
    sizes = _listed(node.attributes, "split") if len(inputs) < 2 or inputs[1] is None else _ints(inputs[1])
    if x is None:
        return [None]
    return np.split(x, len(node.outputs) if sizes is None else np.cumsum(sizes)[:-1], axis)


def _filled(attributes: Attributes, shape: Array) -> Array:
    value = attributes.get("value")
    return np.full(_ints(shape), value[0] if isinstance(value, list) else 0.0)


def _trilu(attributes: Attributes, x: Array, k: Array | None = None) -> Array:
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    return np.triu(x, diagonal) if _integer(attributes, "upper", 1) else np.tril(x, diagonal)


def _running_sum(attributes: Attributes, x: Array, axis: Array) -> Array:
    if _integer(attributes, "exclusive", 0) or _integer(attributes, "reverse", 0):
        raise ValueError("a CumSum that leaves out or runs backwards")
    return np.cumsum(x, int(axis.reshape(-1)[0]), dtype=x.dtype)


def _flatten(attributes: Attributes, x: Array) -> Array:
    axis = _integer(attributes, "axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _divide(a: Array, b: Array) -> Array:
    quotient: Array = np.floor_divide(a, b) if a.dtype.kind in "iu" else np.true_divide(a, b)
    return quotient  # shapes are never negative, so rounding down is rounding to zero


def _transpose(attributes: Attributes, x: Array) -> Array:
    return np.transpose(x, _listed(attributes, "perm"))


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def run(attributes: Attributes, x: Array, axes: Array | None = None) -> Array:
        given = _axes(attributes, axes)
        keep = bool(_integer(attributes, "keepdims", 1))
        return function(x, axis=None if given is None else tuple(given), keepdims=keep)

    return run


def _number(attributes: Attributes, name: str, default: float) -> float:
    value = attributes.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


def _clip(attributes: Attributes, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    least = _number(attributes, "min", -math.inf) if low is None else low
    most = _number(attributes, "max", math.inf) if high is None else high
    return np.minimum(np.maximum(x, least), most)


def _hard_sigmoid(attributes: Attributes, x: npt.NDArray[np.float64]) -> Array:
    line = _number(attributes, "alpha", 0.2) * x + _number(attributes, "beta", 0.5)
    return np.minimum(np.maximum(line, 0.0), 1.0)


def _sigmoid(x: npt.NDArray[np.float64]) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_OPERATORS: dict[str, Operator] = {
    "Abs": _one(np.abs), "Add": _one(np.add), "And": _one(np.logical_and), "Cast": _with(_cast),
    "CastLike": _one(lambda x, like: x.astype(like.dtype)), "Ceil": _one(np.ceil), "Clip": _with(_clip),
    "Concat": _with(lambda attributes, *parts: np.concatenate(parts, _integer(attributes, "axis", 0))),
    "ConstantOfShape": _with(_filled), "Cos": _one(np.cos), "CumSum": _with(_running_sum), "Flatten": _with(_flatten),
    "Floor": _one(np.floor), "ReduceMax": _with(_reduce(np.max)), "ReduceMin": _with(_reduce(np.min)),
    "Sin": _one(np.sin), "Size": _one(lambda x: np.array(x.size, np.int64)),
    "Tile": _one(lambda x, times: np.tile(x, _ints(times))), "Trilu": _with(_trilu), "Xor": _one(np.logical_xor),
    "Div": _one(_divide), "Equal": _one(np.equal), "Erf": _one(np.vectorize(math.erf, otypes=[np.float64])),
    "Exp": _one(np.exp), "HardSigmoid": _with(_hard_sigmoid),
    "HardSwish": _one(lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0)),
    "LeakyRelu": _with(lambda attributes, x: np.where(x < 0, _number(attributes, "alpha", 0.01) * x, x)),
    "ReduceMean": _with(_reduce(np.mean)), "ReduceSum": _with(_reduce(np.sum)),
    "Relu": _one(lambda x: np.maximum(x, 0)), "Sigmoid": _one(_sigmoid),
    "Softplus": _one(lambda x: np.logaddexp(x, 0)),
    "Expand": _one(lambda x, shape: x * np.ones(_ints(shape), x.dtype)),
    "Gather": _with(_gather), "GatherND": _with(_gather_nd), "Greater": _one(np.greater),
    "GreaterOrEqual": _one(np.greater_equal), "Identity": _one(np.asarray), "IsNaN": _one(np.isnan),
    "Less": _one(np.less), "LessOrEqual": _one(np.less_equal), "Max": _one(np.maximum),
    "Min": _one(np.minimum), "Mul": _one(np.multiply),
    "Neg": _one(np.negative), "Not": _one(np.logical_not), "Or": _one(np.logical_or), "Pow": _one(np.power),
    "Range": _one(lambda start, stop, step: np.arange(int(start), int(stop), int(step)).astype(start.dtype)),
    "Reciprocal": _one(np.reciprocal), "Reshape": _with(_reshape), "Shape": _with(_shape), "Slice": _with(_slice),
    "Split": _split, "Sqrt": _one(np.sqrt), "Squeeze": _with(_squeeze), "Sub": _one(np.subtract), "Tanh": _one(np.tanh),
    "Transpose": _with(_transpose), "Unsqueeze": _with(_unsqueeze), "Where": _one(np.where),
}  # fmt: skip
