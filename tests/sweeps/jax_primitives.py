"""JAX's own cases for its primitives through `sx.from_jax`, in stock onnxruntime, and the table.

    python tests/sweeps/jax_primitives.py                     all cases in float32, int32 and bool
    python tests/sweeps/jax_primitives.py --only gather,sort  those of some groups
    python tests/sweeps/jax_primitives.py --sample 200        so many of them, drawn at random

A case is right if onnxruntime gives what `jax.jit` gives: integers and booleans equal, NaN and
infinities at the same places, floats within 2e-5 of the larger of the value and the median. It may
be refused by name; it fails if the runtime refuses it. Fails where one is wrong, or where more
than twenty are neither right nor refused.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import jax
import numpy as np
from jax._src.internal_test_util import test_harnesses

from sardonyx.errors import ImportRefused, SardonyxError
from sardonyx.importers import proof
from sardonyx.importers.jax import check, finish, trees

TYPES = (np.float32, np.int32, np.bool_)
TOLERANCE = 2e-5
RIGHT, REFUSED, WRONG, FAILED, SKIPPED = "right", "refused", "wrong", "failed", "not run by JAX"
MOST_FAILED = 20


def difference(actual: Any, expected: Any) -> str:
    """What differs between two arrays; empty where nothing does."""
    a, b = np.asarray(actual), np.asarray(expected)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
    if a.dtype.kind != "f":
        return "" if np.array_equal(a, b) else f"{np.sum(a != b)} elements differ"
    a, b = a.astype(np.float64), b.astype(np.float64)
    usual = np.isfinite(b)
    if not np.array_equal(a[~usual], b[~usual], equal_nan=True) or not np.isfinite(a[usual]).all():
        return "NaN or infinity at other places"
    if not usual.any():
        return ""
    scale = np.maximum(np.abs(b[usual]), np.median(np.abs(b[usual])))
    apart = np.abs(a[usual] - b[usual])
    worst = float(np.max(apart / np.where(scale > 0, scale, 1.0)))
    return "" if worst <= TOLERANCE else f"relative difference {worst:.1e}"


def judged(case: Any) -> tuple[str, str]:
    """The verdict of one case, and what there is to say about it."""
    try:
        arguments = case.dyn_args_maker(np.random.RandomState(0))
        expected = jax.tree_util.tree_leaves(jax.jit(case.dyn_fun)(*arguments))
    except Exception as error:
        return SKIPPED, type(error).__name__
    try:
        model = finish.forward(lambda _, *a: case.dyn_fun(*a), (), tuple(arguments), checked=False)
        names = [f"input_{i}" for i in range(len(arguments))]
        feeds = check.sample(trees.input_leaves(names, arguments), None)
        used = {v.name for v in model.inputs}
        outputs = proof.run(model, {n: a for n, a in feeds.items() if n in used})
    except ImportRefused as refusal:
        return REFUSED, "; ".join(" ".join(map(str, row[:2])) for row in refusal.where)
    except (SardonyxError, AssertionError) as error:
        return FAILED, f"{type(error).__name__}: {str(error)[:200]}"
    pairs = zip(model.outputs, expected, strict=True)
    problems = [difference(outputs[v.name or ""], check.plain(x)) for v, x in pairs]
    problems = [p for p in problems if p]
    return (WRONG, problems[0]) if problems else (RIGHT, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of groups, separated by commas")
    parser.add_argument("--sample", type=int, default=0, help="only so many cases, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of this draw")
    arguments = parser.parse_args()
    groups = set(filter(None, arguments.only.split(",")))
    cases = [c for c in test_harnesses.all_harnesses if c.dtype in TYPES]
    cases = [c for c in cases if not groups or c.group_name in groups]
    if arguments.sample:
        places = np.random.default_rng(arguments.seed).permutation(len(cases))
        cases = [cases[i] for i in sorted(places[: arguments.sample])]
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    start = time.monotonic()
    for case in cases:
        verdict, words = judged(case)
        counts[verdict] += 1
        if verdict == REFUSED:
            refusals[words] += 1
        elif verdict in (WRONG, FAILED):
            print(f"{verdict:8} {case.fullname[:100]}\n         {words}")
    print(f"\n{len(cases)} cases in {time.monotonic() - start:.0f} s")
    for verdict, count in counts.most_common():
        print(f"{count:6} {verdict}")
    for words, count in refusals.most_common():
        print(f"{count:6} refused: {words}")
    return int(counts[WRONG] > 0 or counts[FAILED] > MOST_FAILED)


if __name__ == "__main__":
    sys.exit(main())
