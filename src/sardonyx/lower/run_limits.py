"""Limits on what Sardonyx's own interpreter may run: nodes, trips of loops, seconds.

A limit holds for everything that runs inside `run_limits(...)`, bodies included. It is counted
where nodes run (`program.py`) and where a loop begins a trip (`controlflow.py`). Memory is limited
by the operating system, around the whole process: `cli/subprocess_limits.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sardonyx.errors import EngineError


class LimitReached(EngineError):
    """A run was stopped because it used up what it may use."""


class RunLimits:
    """Counts against its limits; None: no limit."""

    def __init__(
        self, nodes: int | None = None, trips: int | None = None, seconds: float | None = None
    ):
        self.limits = {"nodes": nodes, "trips": trips, "seconds": seconds}
        self.nodes = self.trips = 0
        self.outer: RunLimits | None = None
        self.end = None if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        """Raise an error if more was used than there is."""
        for name in ("nodes", "trips"):
            limit = self.limits[name]
            if limit is not None and getattr(self, name) > limit:
                self._refuse(name, f"{limit:,}")
        if self.end is not None and time.monotonic() > self.end:
            self._refuse("seconds", f"{self.limits['seconds']:g}")

    def _refuse(self, name: str, limit: str) -> None:
        what = {"nodes": "nodes run", "trips": "trips of loops", "seconds": "seconds"}[name]
        raise LimitReached(
            f"the run was stopped: more than {limit} {what}",
            hint=f"if you trust this model: sx.run_limits({name}=...), --limit {name}=...",
        )


_CURRENT: ContextVar[RunLimits | None] = ContextVar("run_limits", default=None)


@contextmanager
def run_limits(
    *, nodes: int | None = None, trips: int | None = None, seconds: float | None = None
) -> Iterator[RunLimits]:
    """Stop models that run inside the `with` block with an `EngineError` once a limit is exceeded.

    It holds where Sardonyx itself runs the nodes: `to_numpy`, `to_torch`, `to_jax` and
    `to_tensorflow` outside of compiled graphs.

    nodes   -- how many nodes may run, those of bodies included
    trips   -- how many iterations all loops together may make
    seconds -- for how long

    >>> import numpy as np, sardonyx as sx
    >>> function = sx.to_numpy("model.onnx")
    >>> with sx.run_limits(nodes=1_000_000, trips=1000, seconds=60):
    ...     scores = function(np.zeros((2, 8), np.float32))
    """
    current = RunLimits(nodes, trips, seconds)
    current.outer = _CURRENT.get()
    token = _CURRENT.set(current)
    try:
        yield current
    finally:
        _CURRENT.reset(token)


def spend(*, nodes: int = 0, trips: int = 0) -> None:
    """Count against the limits around, if there are any."""
    current = _CURRENT.get()
    while current is not None:
        current.nodes += nodes
        current.trips += trips
        current.check()
        current = current.outer
