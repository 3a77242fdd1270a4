"""Real models on every engine, against onnxruntime, in units of what rounding does: the table.

    python -m tests.sweeps.models                                 all of it
    python -m tests.sweeps.models --engine jax,tensorflow silero  two engines, models of that name
    python -m tests.sweeps.models --keep found.json --time 400    in parts: keeps what is right

A number is the noise ratio of `verify`: the distance from the exact result over onnxruntime's own.
The engines of one model are judged together, on one float64 run, in a process that ends where it
takes too long.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
# Before any framework is imported: jax compiles as it does for users, since models are large.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sardonyx as sx
from sardonyx.errors import SardonyxError
from sardonyx.verify.noise import LOOK, SAME, UNKNOWN, worst
from tests.public_models import models
from tests.real_inputs import inputs
from tests.sweeps.verify import NOT_RUN, Outcome, Worker

ENGINES = ("numpy", "torch", "jax", "tensorflow")
Rows = dict[str, dict[str, Any]]


def judge(name: str, *engines: str) -> list[Outcome]:
    """The verdict on one model in each engine, its ratio, and what went wrong."""
    path = models()[name]
    model = sx.normalize(sx.load(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # text runs in numpy
            report = sx.verify(
                path, *engines, inputs=lambda seed: inputs(name, model, seed), seeds=1
            )
    except SardonyxError as error:
        return [Outcome(NOT_RUN, detail=str(error))] * len(engines)
    return [of_one(report, subject["name"]) for subject in report.subjects[1:]]


def of_one(report: Any, label: str) -> Outcome:
    """What a report says of one engine.

    onnxruntime's own row may stand out: its Sigmoid is absolute, and useless below 3e-8.
    """
    ours = [m for m in report.measurements if m.subject == label]
    unclear = [note for note in report.notes if label in note]
    if not ours:
        return Outcome(NOT_RUN, detail="; ".join(unclear))
    # Without a locale for English, onnxruntime itself refuses a model of text.
    stock = any(m.subject == report.subjects[0]["name"] for m in report.measurements)
    clear = report.comparable or not stock
    verdict = worst([m.verdict(report.bands) for m in ours]) if clear else UNKNOWN
    culprits = [str(c) for c in report.culprits if c.subject == label]
    detail = "" if verdict == SAME else "; ".join([*culprits, *unclear])
    return Outcome(verdict, max(m.ratio for m in ours), detail)


def sweep(given: argparse.Namespace, found: Rows) -> None:
    """Judge what was chosen and is not in `found`, the smallest models first."""
    worker, begun = Worker(judge), time.monotonic()
    for name, _ in sorted(models().items(), key=lambda item: item[1].stat().st_size):
        if given.names and not any(part in name for part in given.names):
            continue
        asked = [e for e in given.engine.split(",") if f"{e} {name}" not in found]
        start = time.monotonic()
        if not asked or start - begun > given.time:
            continue
        answer = worker(name, *asked, limit=given.limit)
        outcomes = answer if isinstance(answer, list) else [answer] * len(asked)
        took = time.monotonic() - start
        for engine, outcome in zip(asked, outcomes, strict=True):
            row = {"verdict": outcome.verdict, "ratio": outcome.ratio, "detail": outcome.detail}
            found[f"{engine} {name}"] = row
            line = f"{name:58} {engine:10} {outcome.verdict:14} {outcome.ratio:9.3g} {took:6.1f} s"
            print(f"{line}  {outcome.detail[:200]}".rstrip(), flush=True)
        if given.keep:
            given.keep.write_text(json.dumps(found, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default=",".join(ENGINES))
    parser.add_argument("--limit", type=float, default=900.0, help="seconds per model")
    parser.add_argument("--time", type=float, default=1e9, help="seconds after which to stop")
    parser.add_argument("--keep", type=Path, help="a file of what was found: added to")
    parser.add_argument("--again", action="store_true", help="anew what was not the same")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    result: Rows = {}
    if options.keep and options.keep.exists():
        result = json.loads(options.keep.read_text())
    if options.again:
        result = {name: row for name, row in result.items() if row["verdict"] == SAME}
    sweep(options, result)
    return summary(result)


def summary(found: Rows) -> int:
    """Print how many there are of each verdict, engine by engine; 1 where one is a failure."""
    counts = Counter((row.split()[0], str(o["verdict"])) for row, o in found.items())
    for (engine, verdict), count in sorted(counts.items()):
        print(f"{engine:12} {verdict:14} {count:5}")
    return int(any(verdict not in (SAME, LOOK) for _, verdict in counts))


if __name__ == "__main__":
    sys.exit(main())
