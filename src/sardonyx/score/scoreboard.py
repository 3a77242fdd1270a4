"""`score`: the scoreboard from Python, as the command runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from sardonyx.errors import ArgumentError
from sardonyx.score import engines as engine_list
from sardonyx.score import folders, run, select
from sardonyx.score.score import AXES, Score


def score(
    *engines: str,
    ops: Sequence[str] = (),
    case: str = "",
    sample: int = 1,
    axes: Sequence[str] = (),
    jobs: int = 0,
    seconds: float = run.LIMIT,
    fresh: bool = False,
    known: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Score:
    """Run the official suite of ONNX over engines; print the result, or `save` it.

    engines  -- names of engines, "ours", "peers", "all", or a Python file with `run()`; without
                any, our own engines whose frameworks are installed
    ops      -- only cases that use one of these operators
    case     -- only cases whose name matches this regular expression
    sample   -- only one case in so many, the same ones every time
    axes     -- "forward", "gradient", "training"; without any, all whose cases are installed
    jobs     -- processes at a time; 0 for one per core
    seconds  -- how long a case may take
    fresh    -- run everything again, also what earlier runs found
    known    -- run nothing: show what earlier runs found
    progress -- called with the engine's name, how many cases are done, and of how many

    >>> import sardonyx as sx
    >>> result = sx.score("numpy", case="^test_relu$", axes=["forward"])
    >>> result
    <Score: numpy 1 of 1>
    """
    selected = engine_list.find(",".join(engines or ["ours"]))
    if not selected:
        raise ArgumentError("no such engine is installed", hint="sardonyx score --setup NAME")
    jobs = jobs or os.cpu_count() or 1
    cases = select.cases(axes or available_axes(), ops=ops, pattern=case, sample=sample, jobs=jobs)
    job = run.Job(cases, jobs, seconds, fresh, known, sample=sample)
    if progress is not None:
        job.progress = progress
    return run.score(selected, job)


def available_axes() -> list[str]:
    """The axes whose cases are installed: a wheel lacks those of training."""
    lacks_training = folders.training_cases() is None
    return [axis for axis in AXES if not (axis == "training" and lacks_training)]
