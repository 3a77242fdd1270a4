"""JAX's own cases for its primitives through `sx.from_jax`, in stock onnxruntime, and the table.

    python tests/sweeps/jax_primitives.py                     all cases in float32, int32 and bool
    python tests/sweeps/jax_primitives.py --only gather,sort  those of some groups
    python tests/sweeps/jax_primitives.py --sample 200        so many of them, drawn at random
    python tests/sweeps/jax_primitives.py --jobs 8 -o all.json  in several processes

A case is right if onnxruntime gives what `jax.jit` gives: integers and booleans equal, NaN and
infinities at the same places, floats within 2e-5 of the larger of the value and the median. It may
be refused by name; it fails if the runtime refuses it. Fails where one is wrong, or where more
than twenty are neither right nor refused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
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


def chosen(arguments: argparse.Namespace) -> list[Any]:
    """The cases that the arguments ask for, always in the same order."""
    groups = set(filter(None, arguments.only.split(",")))
    cases = [c for c in test_harnesses.all_harnesses if c.dtype in TYPES]
    cases = [c for c in cases if not groups or c.group_name in groups]
    if arguments.sample:
        places = np.random.default_rng(arguments.seed).permutation(len(cases))
        cases = [cases[i] for i in sorted(places[: arguments.sample])]
    return cases


def judge_part(arguments: argparse.Namespace, part: int) -> list[tuple[str, str, str]]:
    """The names, verdicts and words of every n-th case: the work of one process."""
    warnings.simplefilter("ignore")
    rows = []
    for case in chosen(arguments)[part :: arguments.jobs]:
        verdict, words = judged(case)
        rows.append((case.fullname, verdict, words))
        if verdict in (WRONG, FAILED):
            print(f"{verdict:8} {case.fullname[:100]}\n         {words}", flush=True)
    return rows


def judge_all(arguments: argparse.Namespace) -> list[tuple[str, str, str]]:
    if arguments.jobs == 1:
        return judge_part(arguments, 0)
    processes = multiprocessing.get_context("spawn")
    with processes.Pool(arguments.jobs) as pool:
        parts = pool.starmap(judge_part, [(arguments, i) for i in range(arguments.jobs)], 1)
    return [row for part in parts for row in part]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="names of groups, separated by commas")
    parser.add_argument("--sample", type=int, default=0, help="only so many cases, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of this draw")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("-o", "--output", help="a JSON file of the verdicts")
    arguments = parser.parse_args()
    start = time.monotonic()
    rows = judge_all(arguments)
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    counts = Counter(verdict for _, verdict, _ in rows)
    refusals = Counter(words for _, verdict, words in rows if verdict == REFUSED)
    print(f"\n{len(rows)} cases in {time.monotonic() - start:.0f} s")
    for verdict, count in counts.most_common():
        print(f"{count:6} {verdict}")
    for words, count in refusals.most_common():
        print(f"{count:6} refused: {words}")
    return int(counts[WRONG] > 0 or counts[FAILED] > MOST_FAILED)


if __name__ == "__main__":
    sys.exit(main())
