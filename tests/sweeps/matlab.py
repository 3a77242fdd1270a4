"""The official suite as MATLAB code in GNU Octave: `python -m tests.sweeps.matlab`.

A float case takes or gives float32 or float64, and no types that MATLAB lacks. Every case is
written and right, or refused, or written and wrong; the last must not occur. Many cases share one
process of Octave, which takes a while to start.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx as sx
from sardonyx.engines.matlab.octave import Job, ends_of, run
from sardonyx.engines.matlab.write import written_form
from sardonyx.errors import SardonyxError
from tests.official import Official, cases

KINDS = "fiub"
RANDOM = ("dropout", "bernoulli", "random", "multinomial")


def is_float_case(case: Official) -> bool:
    arrays = [a for pair in case.sets() for side in pair for a in side]
    if not arrays or any(not isinstance(a, np.ndarray) for a in arrays):
        return False
    types = {a.dtype for a in arrays}
    return bool(types & {np.dtype("f4"), np.dtype("f8")}) and all(
        t.kind in KINDS and t != np.float16 for t in types
    )


def written(case: Official, folder: Path) -> tuple[list[Job], list[list[Any]]] | str:
    """The jobs of a case and what they must give, or why it is refused."""
    try:
        model = sx.load(case.model)
        sx.to_matlab_source(model, folder)
        served = written_form(model)
    except SardonyxError as error:
        return str(error)
    names = [v.name for v in model.inputs]
    jobs, expected = [], []
    for inputs, outputs in case.sets():
        feeds = dict(zip(names, inputs))
        arrays = [np.asarray(feeds[v.name]) for v in served.graph.inputs]
        jobs.append(Job(folder, arrays, ends_of(served.graph.outputs)))
        expected.append(outputs)
    return jobs, expected


def difference(outputs: Sequence[np.ndarray] | str, expected: Sequence[Any]) -> str:
    if isinstance(outputs, str):
        return f"fails: {outputs}"
    for i, (value, reference) in enumerate(zip(outputs, expected, strict=False)):
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return f"output {i}: {value.dtype}{value.shape}, not {reference.dtype}{reference.shape}"
        if not np.allclose(value, reference, rtol=1e-3, atol=1e-5, equal_nan=True):
            return f"output {i} differs by {np.nanmax(np.abs(value - 1.0 * reference)):.3g}"
    return ""


def sweep(chosen: Sequence[Official], size: int) -> Iterator[tuple[Official, str, str]]:
    """Each case with its class (right, refused, wrong) and the words to it."""
    for start in range(0, len(chosen), size):
        with tempfile.TemporaryDirectory() as place:
            jobs: list[Job] = []
            owners: list[tuple[Official, list[Any]]] = []
            for number, case in enumerate(chosen[start : start + size]):
                result = written(case, Path(place, str(number)))
                if isinstance(result, str):
                    yield case, "refused", result
                    continue
                jobs += result[0]
                owners += [(case, expected) for expected in result[1]]
            for (case, expected), outputs in zip(owners, run(jobs), strict=True):
                words = difference(outputs, expected)
                yield case, "wrong" if words else "right", words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--case", default="")
    parser.add_argument("--size", type=int, default=150)
    parser.add_argument("--refusals", action="store_true")
    arguments = parser.parse_args()
    chosen = [c for c in cases() if arguments.case in c.name and c.kind != "real"]
    chosen = [c for c in chosen if not any(word in c.name for word in RANDOM)]
    chosen = [c for c in chosen if is_float_case(c)][:: arguments.sample]
    counts: Counter[str] = Counter()
    for case, kind, words in sweep(chosen, arguments.size):
        counts[kind] += 1
        if kind == "wrong" or (kind == "refused" and arguments.refusals):
            print(f"{kind}  {case.name}  {' / '.join(words.splitlines()[:3])[:220]}", flush=True)
    total = sum(counts.values())
    print(f"{total} float cases: {dict(counts)}; {counts['right'] / total:.1%} written and right")


if __name__ == "__main__":
    main()
