"""Comparisons of sizes: ints where they are known, else scalars that only the framework knows.

+ - * // work on both. `a > b` on a size that is not known would decide while building, once and for
every run, so that rules call these functions instead. They answer with another size, or with what
is certain for every run; else they raise `NotStatic`, and the node is computed by the framework.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.lower.xp import NotStatic, settle


@dataclass(frozen=True)
class Order:
    """How a framework compares its scalars, with each other and with ints.

    larger, smaller -- the larger, the smaller one of two sizes, as a size
    is_at_least     -- whether a ≥ b is certain for every run
    """

    larger: Callable[[Any, Any], Any]
    smaller: Callable[[Any, Any], Any]
    is_at_least: Callable[[Any, Any], bool]


ORDERS: dict[type, Order] = {}


def is_number(size: Any) -> bool:
    return isinstance(size, (int, np.integer))


def order_of(*sizes: Any) -> Order:
    for size in sizes:
        if type(size) in ORDERS:
            return ORDERS[type(size)]
    raise NotStatic("sizes that are only known while running cannot be compared")


def larger(a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        return max(a, b)
    a, b = _number_first(a, b)
    return a if is_at_least(a, b) else b if is_at_least(b, a) else order_of(a, b).larger(a, b)


def smaller(a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        return min(a, b)
    a, b = _number_first(a, b)
    return a if is_at_least(b, a) else b if is_at_least(a, b) else order_of(a, b).smaller(a, b)


def _number_first(a: Any, b: Any) -> tuple[Any, Any]:
    """Of two sizes that are equal for certain, the number is chosen: expressions stay short."""
    return (b, a) if is_number(b) else (a, b)


def is_at_least(a: Any, b: Any) -> bool:
    """Whether a ≥ b is certain."""
    if is_number(a) and is_number(b):
        return bool(a >= b)
    return a is b or order_of(a, b).is_at_least(a, b)


def is_equal(a: Any, b: Any) -> bool:
    if is_number(a) and is_number(b):
        return bool(a == b)
    if is_at_least(a, b) and is_at_least(b, a):
        return True
    if is_at_least(a, b + 1) or is_at_least(b, a + 1):
        return False
    raise NotStatic("whether two sizes are equal is only known while running")


def quotient(a: Any, b: Any) -> Any:
    """a / b, rounded toward zero as ONNX does."""
    if is_number(a) and is_number(b):
        return int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    if is_number(b) and b < 0:
        return -quotient(a, -b)
    if not is_at_least(b, 0):
        raise NotStatic("the sign of a divisor is only known while running")
    if is_at_least(a, 0):
        return larger(a // b, 0)  # the number 0, where nothing else is possible
    return larger(a, 0) // b - larger(-a, 0) // b


def of_sizes(function: Callable[[Any, Any], Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`function` of each pair of sizes in two arrays, broadcast."""
    a, b = np.broadcast_arrays(np.asarray(a, object), np.asarray(b, object))
    return settle([function(*pair) for pair in zip(a.flat, b.flat)], a.shape)


def broadcast_shape(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of arrays broadcast together."""
    rank = max(len(s) for s in shapes)
    padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
    return tuple(functools.reduce(_broadcast, sizes) for sizes in zip(*padded))


def _broadcast(a: Any, b: Any) -> Any:
    for size, other in ((a, b), (b, a)):
        if is_number(size):
            return other if size == 1 else size
    return larger(a, b)
