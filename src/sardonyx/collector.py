"""Python's garbage collector, paused while many objects are made that all stay.

A graph of 20,000 nodes is hundreds of thousands of objects that refer to each other: while they are
made, the collector goes over all of them again and again, which takes half of the time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0


@contextmanager
def paused() -> Iterator[None]:
    """Pause the collector inside; the outermost of nested or concurrent pauses ends it.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    global _pauses
    with _lock:
        is_first = _pauses == 0 and gc.isenabled()
        if _pauses or is_first:
            _pauses += 1
        counted = bool(_pauses)
        if is_first:
            gc.disable()
    try:
        yield
    finally:
        if counted:
            with _lock:
                _pauses -= 1
                if not _pauses:
                    gc.enable()
