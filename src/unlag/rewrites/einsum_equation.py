"""Einsum equations that are matrix products."""

from __future__ import annotations

from typing import NamedTuple


class ProductPlan(NamedTuple):
    """How a two-operand Einsum becomes Transpose, MatMul, Transpose."""

    swapped: bool
    """The second operand is the MatMul's first."""
    left: tuple[int, ...]
    """Permutation of the MatMul's first operand: batch axes, its own, the summed ones."""
    right: tuple[int, ...]
    """Of the second: batch axes, the summed ones, its own."""
    result: tuple[int, ...]
    """Of the product, to the order that the equation gives."""
    batch: int
    own_left: int
    own_right: int
    summed: int


def plan_product(equation: str) -> ProductPlan | None:
    """How to compute an equation as one matrix product; nothing where it isn't one.

    The MatMul's second operand has one own axis and one summed axis where there are batch axes; without batch axes it
    may have more of either, which a caller that knows it to be constant can merge.
    """
    text = equation.replace(" ", "")
    if "." in text or text.count("->") != 1 or text.count(",") != 1:
        return None
    operands, result = text.split("->")
    first, second = operands.split(",")
    if any(len(set(part)) != len(part) for part in (first, second, result)):
        return None
    for swapped, left, right in ((False, first, second), (True, second, first)):
        plan = _plan(left, right, result, swapped=swapped)
        if plan is not None:
            return plan
    return None


def _plan(left: str, right: str, result: str, *, swapped: bool) -> ProductPlan | None:
    batch = [c for c in result if c in left and c in right]
    own_left = [c for c in result if c in left and c not in right]
    own_right = [c for c in result if c in right and c not in left]
    summed = [c for c in left if c in right and c not in result]
    if set(left) != {*batch, *own_left, *summed} or set(right) != {*batch, *own_right, *summed}:
        return None
    if not own_left or not own_right or not summed or set(result) != {*batch, *own_left, *own_right}:
        return None
    if batch and not len(own_left) == len(own_right) == len(summed) == 1:
        return None
    made = [*batch, *own_left, *own_right]
    return ProductPlan(
        swapped=swapped,
        left=tuple(left.index(c) for c in (*batch, *own_left, *summed)),
        right=tuple(right.index(c) for c in (*batch, *summed, *own_right)),
        result=tuple(made.index(c) for c in result),
        batch=len(batch),
        own_left=len(own_left),
        own_right=len(own_right),
        summed=len(summed),
    )
