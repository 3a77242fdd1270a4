"""Real models on every engine, against onnxruntime, in units of what rounding does: the table.

    python -m tests.sweeps.models [--engine numpy,torch,jax,tensorflow] [name …]

A number is the noise ratio of `verify`: the distance from the exact result over onnxruntime's own.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sardonyx as sx
from sardonyx.errors import SardonyxError
from sardonyx.verify.noise import SAME, UNKNOWN, worst
from tests.public_models import models
from tests.real_inputs import inputs

ENGINES = ("numpy", "torch", "jax", "tensorflow")


def judge(name: str, engine: str) -> tuple[str, str]:
    """The verdict on one model in one engine, and the ratio or what went wrong."""
    path = models()[name]
    model = sx.normalize(sx.load(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # text runs in numpy
            report = sx.verify(path, engine, inputs=lambda seed: inputs(name, model, seed), seeds=1)
    except SardonyxError as error:
        return "not run", error.what[:90]
    # onnxruntime's own row may stand out: its Sigmoid is absolute, and useless below 3e-8.
    ours = [m for m in report.measurements if m.subject == report.subjects[1]["name"]]
    verdict = worst([m.verdict(report.bands) for m in ours]) if report.comparable else UNKNOWN
    detail = f"{max((m.ratio for m in ours), default=0):.3g}"
    if verdict != SAME:
        detail += "  " + "; ".join([*map(str, report.culprits), *report.notes])[:200]
    return verdict, detail


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default=",".join(ENGINES))
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for engine in given.engine.split(","):
        for name in models():
            if given.names and not any(part in name for part in given.names):
                continue
            start = time.monotonic()
            verdict, detail = judge(name, engine)
            counts[engine, verdict] += 1
            took = time.monotonic() - start
            print(f"{name:58} {engine:10} {verdict:14} {took:6.1f} s  {detail}", flush=True)
    for (engine, verdict), count in sorted(counts.items()):
        print(f"{engine:12} {verdict:14} {count:5}")
    return int(any(verdict in ("different", "not run") for _, verdict in counts))


if __name__ == "__main__":
    sys.exit(main())
