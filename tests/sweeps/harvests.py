"""Cases out of the test files of another project, each tried with a limit of time and memory.

Batches run in processes of their own: one that dies costs the case that it was at.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

BATCH, SECONDS, MEMORY = 60, 120, 12 * 2**30  # seconds of CPU
Place = tuple[int, int]


class Late(BaseException):
    """A case takes too long; nothing that it calls may take this for a failure."""


@contextlib.contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Within this, `Late` is raised after so many seconds of CPU."""

    def late(*_: Any) -> None:
        raise Late(f"more than {seconds} seconds of CPU")

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def run(
    module: str,
    text: str,
    files: Callable[[], list[Path]],
    cases: Callable[[Path], list[Any]],
    name: Callable[[Any], str],
    result: Callable[[Any], str],
    batch: int = BATCH,
) -> int:
    """The command of a sweep: a table of all cases, and the exit code.

    module -- that calls this, to be run again in other processes
    files  -- in which cases are
    cases  -- of a file, each with a `name` and a `result`: a word, two spaces, and details
    """
    parser = argparse.ArgumentParser(description=text.split("\n\n")[0])
    parser.add_argument("--work", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="*", help="a pattern of the names of cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first file")
    options = parser.parse_args()
    if options.work is None:
        return _drive(module, options.only, (options.first, 0))
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    first, done, place = (options.work[0], options.work[1]), 0, (0, 0)
    for place, case in _from(first, files(), cases):
        if place[0] > first[0] and place[1] == 0 and done >= batch:
            print(json.dumps({"next": place[0]}), flush=True)
            return 0
        if fnmatchcase(name(case), options.only):
            _try(place, name(case), lambda case=case: result(case))
            done += 1
    print(json.dumps({"end": True}), flush=True)
    return 0


def _from(
    first: Place, files: list[Path], cases: Callable[[Path], list[Any]]
) -> Iterator[tuple[Place, Any]]:
    for index, path in enumerate(files):
        if index >= first[0]:
            for number, case in enumerate(cases(path)):
                if (index, number) >= first:
                    yield (index, number), case


def _try(place: Place, name: str, result: Callable[[], str]) -> None:
    """Try one case, and say so before and after, as lines of JSON."""
    print(json.dumps({"place": place, "name": name}), flush=True)
    started = time.process_time()
    try:
        with limited():
            text = result()
    except (Exception, Late) as error:
        text = f"failed  {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    entry = {"result": text, "seconds": time.process_time() - started}
    print(json.dumps({"place": place, **entry}), flush=True)


def _drive(module: str, only: str, first: Place) -> int:
    counts: dict[str, int] = {}
    ended = False
    while not ended:
        command = [sys.executable, "-W", "ignore", "-m", module, "--only", only]
        process = subprocess.Popen(
            [*command, "--work", *map(str, first)], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        current, before = None, first
        assert process.stdout is not None
        for line in process.stdout:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if not isinstance(entry, dict):
                continue
            ended = ended or bool(entry.get("end"))
            if "next" in entry:
                first = (entry["next"], 0)
            elif "name" in entry:
                current = entry
            elif "result" in entry and current is not None:
                _show(current, entry["result"], entry["seconds"], counts)
                first, current = (entry["place"][0], entry["place"][1] + 1), None
        process.wait()
        if current is not None:  # the process is gone in the middle of a case
            _show(current, "died  memory or a crash", 0.0, counts)
            first = (current["place"][0], current["place"][1] + 1)
        elif first == before and not ended:  # or before its first case: the next file
            _show({"place": first, "name": "a file"}, "died  before its first case", 0.0, counts)
            first = (first[0] + 1, 0)
            ended = process.returncode == 1  # an error of Python's, which meets every file
    print(counts)
    return int(not counts or any(word in counts for word in ("WRONG", "failed", "died")))


def _show(case: dict[str, Any], result: str, seconds: float, counts: dict[str, int]) -> None:
    word = result.split("  ")[0]
    counts[word] = counts.get(word, 0) + 1
    place = "{}.{}".format(*case["place"])
    print(f"{place:8} {case['name']:28} {result}  {seconds:.1f} s of CPU", flush=True)
