"""The scoreboard over our engines, held against the last score: what is worse is a failure, and so
is an engine or an axis without results.

python -m tests.sweeps.backend                                  all of it, as the nightly does
python -m tests.sweeps.backend --engine torch --family nn -v    one family, and each failure
python -m tests.sweeps.backend --engine torch --op Conv,MaxPool cases that use these operators
python -m tests.sweeps.backend --update                         what is now is the new baseline

A run that was stopped goes on where it was: results are kept case by case.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from sardonyx import opset
from sardonyx.score import engines, run, select, table
from sardonyx.score.score import AXES, Score, changes, compared_with, to_baseline

BASELINE = Path(__file__).parent.parent / "score_baseline.json"
SECONDS = 180.0  # a case may take: the nightly shares its machine


def chosen(args: argparse.Namespace) -> dict[str, list[Any]]:
    ops = args.op.split(",") if args.op else []
    every = AXES if not (ops or args.family or args.name) else ("forward",)
    axes = args.axis.split(",") if args.axis else every
    cases = select.cases(axes, ops=ops, pattern=args.name, jobs=args.jobs)
    if args.family:
        expected = set(args.family.split(","))
        cases = {
            axis: [c for c in result if family(c) in expected] for axis, result in cases.items()
        }
    return cases


def family(case: Any) -> str:
    domain, _, op = case.op.rpartition("::")
    return opset.family(op, domain) if op else getattr(case, "kind", "training")


def is_whole(args: argparse.Namespace) -> bool:
    return args.engine == "ours" and not (args.axis or args.op or args.family or args.name)


def competitors(args: argparse.Namespace) -> list[engines.Engine]:
    result = engines.find(args.engine)
    if args.native:
        result = [replace(e, environment={"SARDONYX_SCORE_FALLBACK": "error"}) for e in result]
    return result


def regressed(score: Score, whole: bool) -> tuple[bool, bool]:
    """Print what is other than the baseline: worse, better, gone and new (if the run was whole).

    Returns whether anything is worse or gone, and whether anything is better or new.
    """
    before = compared_with(BASELINE, score)
    result = list(changes(score, before))
    gone, new = missing(score, before) if whole else ([], [])
    print("\n".join([*table.changed(result), *gone, *new]))
    worse = [change.is_worse for change in result]
    return bool(gone) or any(worse), bool(new) or not all(worse)


def missing(score: Score, before: Score) -> tuple[list[str], list[str]]:
    """Engines and axes that only the older, and only the newer of two scores has."""
    held = {(c.name, axis) for c in score.columns if not c.canary for axis in c.cells}
    known = {(c.name, axis) for c in before.columns for axis in c.cells}
    gone = [f"gone  {name}  {axis}" for name, axis in sorted(known - held)]
    return gone, [f"new  {name}  {axis}" for name, axis in sorted(held - known)]


def reported(engine: str, done: int, total: int) -> None:
    """Now and then a line, for whoever waits."""
    if done % 250 == 0:
        print(f"{engine}: {done} of {total}", file=sys.stderr, flush=True)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--engine", default="ours", help="one or more, by commas")
    parser.add_argument("--axis", default="", help=f"of {', '.join(AXES)}; if not all, forward")
    parser.add_argument("--op", default="")
    parser.add_argument("--family", default="")
    parser.add_argument("--name", default="", help="a regular expression")
    parser.add_argument("--native", action="store_true", help="no nodes outside of the framework")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fresh", action="store_true", help="take nothing from earlier runs")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("-v", action="store_true", help="print every failure")
    args = parser.parse_args()
    if args.update and (args.native or not is_whole(args)):
        sys.exit("a baseline is made of all engines and cases")
    job = run.Job(chosen(args), args.jobs, SECONDS, args.fresh, progress=reported)
    score = run.score(competitors(args), job)
    if args.v:
        print("\n".join(table.failures(score)))
    print(table.text(score))
    if args.native:
        return
    worse, better = regressed(score, is_whole(args))
    if args.update:
        if broken := [c.name for c in score.columns if c.canary]:
            sys.exit(f"no baseline is made of broken engines: {', '.join(broken)}")
        BASELINE.write_text(to_baseline(score))
        return
    if better:
        print("what is better or new is held from now on after: tests/sweeps/backend.py --update")
    if worse:
        sys.exit(1)


if __name__ == "__main__":
    main()
