"""Tables that come from attributes: made once, searched without branches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

INT64 = np.dtype(np.int64)


class Same:
    """A key that identifies one object: attributes are compared by identity, not by elements."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """What `make` gives for attributes, remembered: rules are called at every run."""

    @functools.lru_cache(maxsize=128)
    def cached(**attributes: Any) -> Any:
        return make(**{k: v.value if isinstance(v, Same) else v for k, v in attributes.items()})

    def call(**attributes: Any) -> Any:
        plain = (int, str, type(None))
        return cached(**{k: v if isinstance(v, plain) else Same(v) for k, v in attributes.items()})

    return call


def search(xp, keys, x):
    """For each element of `x` its place among sorted `keys` of numpy, and whether it is there."""
    table = xp.asarray(keys)
    at = xp.zeros(xp.shape(x), INT64)
    step = 1 << (len(keys) - 1).bit_length()
    while step > 1:
        step //= 2
        further = at + step
        inside = xp.minimum(further, xp.scalar(len(keys) - 1, further))
        reached = xp.less_equal(xp.take(table, inside, 0), x)
        fits = xp.less(further, xp.scalar(len(keys), further))
        at = xp.where(xp.logical_and(reached, fits), further, at)
    return at, xp.equal(xp.take(table, at, 0), x)
