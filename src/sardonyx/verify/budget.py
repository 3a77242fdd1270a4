"""How long a comparison may take, and what to do when that is over: stop, and say so.

Our own interpreter, which computes the float64 runs, is stopped between two nodes. A call of an
engine is not stopped: whatever comes after it is left out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from sardonyx.errors import EngineError
from sardonyx.lower.run_limits import LimitReached, run_limits

SECONDS = 300.0
LEAST = 1.0  # seconds that a step gets when hardly any are left


class OutOfTime(EngineError):
    """The time of a comparison is used up."""


class Budget:
    """The seconds of one comparison."""

    def __init__(self, seconds: float = SECONDS):
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.left <= 0

    def check(self) -> None:
        """Raise `OutOfTime` where no time is left."""
        if self.is_over:
            raise OutOfTime(f"the time budget of {self.seconds:g} s is used up", hint="seconds=")

    @contextlib.contextmanager
    def within(self, share: float = 1.0) -> Iterator[None]:
        """Let our interpreter use a share of what is left; then `OutOfTime`."""
        seconds = max(share * self.left, LEAST)
        try:
            with run_limits(seconds=seconds) as limits:
                yield
        except LimitReached as error:
            if time.monotonic() < (limits.end or 0):
                raise  # a limit around this one
            raise OutOfTime(f"stopped after {seconds:.0f} s", error.where, "seconds=") from error
