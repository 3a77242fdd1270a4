"""Ranks that depend on data: where the rest of a graph is built once for each of them.

Frameworks build graphs of static ranks. A node whose rank depends on a size that is free (a Squeeze
without axes, an If with a Squeeze in one branch) returns a `Fork`; the driver then builds all that
follows inside each branch, where the rank is one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sardonyx.lower.xp import NotStatic

# Each fork doubles what follows it; branches that are invalid end early, most models need few.
MOST_FORKS = 64

Continuation = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Fork:
    """The results of a node, of which only a run knows the rank.

    condition    -- a tensor: whether the first alternative holds
    alternatives -- two functions, each of which passes its results to the function that it is given
    """

    condition: Any
    alternatives: tuple[Callable[[Continuation], Any], Callable[[Continuation], Any]]


_COUNT: ContextVar[list[int] | None] = ContextVar("forks", default=None)


@contextmanager
def counting() -> Iterator[None]:
    """Where the forks of one run of a program are counted."""
    token = _COUNT.set([0])
    try:
        yield
    finally:
        _COUNT.reset(token)


def count_fork() -> None:
    """Count one fork more; refuse if there are too many."""
    count = _COUNT.get()
    if count is None:
        return
    count[0] += 1
    if count[0] > MOST_FORKS:
        raise NotStatic(f"more than {MOST_FORKS} combinations of ranks depend on sizes")
