"""Which cases to run: all, or those with an operator or a name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

from sardonyx.errors import ArgumentError, quote
from sardonyx.score import suite
from sardonyx.score.score import AXES


def cases(
    axes: Sequence[str] = AXES,
    *,
    ops: Sequence[str] = (),
    pattern: str = "",
    sample: int = 1,
    jobs: int = 1,
) -> dict[str, list[Any]]:
    """The cases of each axis that use one of `ops` and whose name matches `pattern`.

    sample -- one in so many of them, always the same ones, spread over all operators
    """
    for axis in axes:
        if axis not in AXES:
            raise ArgumentError(f"there is no axis {quote(axis)}", hint=f"one of {', '.join(AXES)}")
    selection = {
        axis: [c for c in _every(axis, jobs) if _fits(c, ops, pattern) and _drawn(c, sample)]
        for axis in axes
    }
    if not any(selection.values()):
        raise ArgumentError(
            "no case matches", hint="cases have the names of onnx, such as test_relu"
        )
    return selection


def _every(axis: str, jobs: int) -> Sequence[Any]:
    if axis == "forward":
        return suite.cases()
    if axis == "gradient":
        from sardonyx.score import derivatives

        return derivatives.cases(jobs)
    from sardonyx.score import records

    return records.cases()


def _fits(case: Any, ops: Sequence[str], pattern: str) -> bool:
    if ops and not {case.op, *case.ops} & set(ops):
        return False
    return re.search(pattern, case.name) is not None


def _drawn(case: Any, sample: int) -> bool:
    return zlib.crc32(case.name.encode()) % max(sample, 1) == 0
