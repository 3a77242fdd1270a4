"""`verify` over real models on every engine: correct conversions, so that every alarm is false.

    python tests/sweeps/verify.py [--engine numpy,torch] [--largest 4] [name …]

Prints one line per model and engine and the totals; fails where one is called different.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sardonyx as sx
from sardonyx.errors import SardonyxError
from tests.public_models import models


def judge(path: Path, engine: str) -> tuple[str, str]:
    try:
        report = sx.verify(path, engine, seeds=1)
    except SardonyxError as error:
        return "not run", error.what[:90]
    detail = f"{report.ratio:.3g}"
    if report.verdict != "same":
        detail += "  " + "; ".join([*map(str, report.culprits), *report.notes])[:150]
    return report.verdict, detail


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="numpy,torch")
    parser.add_argument("--largest", type=float, default=4.0, help="megabytes")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    for name, path in models().items():
        if path.stat().st_size > given.largest * 1e6:
            continue
        if given.names and not any(part in name for part in given.names):
            continue
        for engine in given.engine.split(","):
            start = time.monotonic()
            verdict, detail = judge(path, engine)
            counts[verdict] += 1
            took = time.monotonic() - start
            print(f"{name:52} {engine:10} {verdict:14} {took:6.1f} s  {detail}", flush=True)
    listed = ", ".join(f"{verdict} {n}" for verdict, n in counts.most_common())
    print(f"{sum(counts.values())} correct conversions: {listed}")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
