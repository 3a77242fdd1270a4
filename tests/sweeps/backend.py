"""The official backend suite of onnx over our engines: what passes, by ONNX family, and the table.

python -m tests.sweeps.backend --engine torch --family nn -v      one family, and each failure
python -m tests.sweeps.backend --engine torch --op Conv,MaxPool   cases that use these operators
python -m tests.sweeps.backend --engine numpy,torch --jobs 2      all of it: the table
"""

from __future__ import annotations

import argparse
import collections
import importlib
import os
import re
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.official import cases, check

CHUNK = 64
# Before any framework is imported, as in tests/conftest.py.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@dataclass
class Count:
    """What came of a number of cases."""

    good: collections.Counter[str] = field(default_factory=collections.Counter)
    every: collections.Counter[str] = field(default_factory=collections.Counter)
    missing: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        for name in ("good", "every", "missing", "failures"):
            mine = getattr(self, name)
            (mine.extend if isinstance(mine, list) else mine.update)(getattr(other, name))


def chosen(args: argparse.Namespace) -> list[int]:
    found = []
    for i, case in enumerate(cases()):
        if args.op and not set(args.op.split(",")) & {op for _, op in case.ops}:
            continue
        if args.family and case.family() not in args.family.split(","):
            continue
        if args.name and not re.search(args.name, case.name):
            continue
        found.append(i)
    return found


def run(engine: str, indices: list[int], fallback: str) -> Count:
    """Run some of the cases on one engine, in this process."""
    from sardonyx.errors import UnsupportedOp

    prepare = importlib.import_module(f"sardonyx.engines.{engine}").Backend.prepare
    # onnxruntime itself has no nodes that run elsewhere
    settings = {} if engine == "onnxruntime" else {"fallback": fallback}
    every = cases()
    count = Count()
    for i in indices:
        case = every[i]
        family = case.family()
        count.every[family] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(case, prepare, **settings)
            count.good[family] += 1
        except UnsupportedOp as error:
            count.missing.update({row[0] for row in error.where})
        except Exception as error:
            what = f"{type(error).__name__}: {brief(error)}"
            count.failures.append(f"FAIL {family:18} {case.name:60} {what}")
    return count


def brief(error: Exception) -> str:
    return " | ".join(line.strip() for line in str(error).splitlines() if line.strip())[:230]


def sweep(engine: str, indices: list[int], fallback: str, jobs: int) -> Count:
    if jobs == 1:
        return run(engine, indices, fallback)
    total = Count()
    with ProcessPoolExecutor(jobs) as pool:
        parts = [indices[i : i + CHUNK] for i in range(0, len(indices), CHUNK)]
        for part in pool.map(run, *zip(*((engine, p, fallback) for p in parts))):
            total.add(part)
    return total


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--engine", default="numpy", help="one or more, by commas")
    parser.add_argument("--op", default="")
    parser.add_argument("--family", default="")
    parser.add_argument("--name", default="", help="a regular expression")
    parser.add_argument("--native", action="store_true", help="no nodes outside of the framework")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-v", action="store_true", help="print every failure")
    args = parser.parse_args()
    indices = chosen(args)
    rows = []
    for engine in args.engine.split(","):
        started = time.perf_counter()
        count = sweep(engine, indices, "error" if args.native else "allow", args.jobs)
        report(count, args.v)
        spent = time.perf_counter() - started
        good, every = count.good.total(), count.every.total()
        rows.append(f"{engine:12} {good:5} of {every:5}   {spent:5.0f} s")
    print("\n".join(rows))


def report(count: Count, verbose: bool) -> None:
    if verbose:
        print("\n".join(count.failures))
    for op, number in count.missing.most_common():
        print(f"no rule: {op:30} {number:5} cases")
    for family in sorted(count.every):
        print(f"{family:20} {count.good[family]:5} of {count.every[family]:5}")


if __name__ == "__main__":
    main()
