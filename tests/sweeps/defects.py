"""Whether the tests of each mended defect fail where the mending is undone: the table.

    python -m tests.sweeps.defects            all of `tests/defects.toml`
    python -m tests.sweeps.defects 4 7        these

Each piece of code is undone in a copy of the sources; tests that only pass without it count for
nothing. A defect is "shown" if a test fails, "missed" if all pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.test_defects import DEFECTS

ROOT = Path(__file__).parent.parent.parent
SECONDS = 900
FOLDERS = ("src", "tests")
FILES = ("pyproject.toml", "README.md", "Makefile")
SHOWN, MISSED, NOT_TRIED, BROKEN = "shown", "missed", "not tried", "broken"


def judge(defect: dict[str, Any], copy: Path) -> tuple[str, str]:
    """What the tests of a defect say of a copy in which its mending is undone."""
    if "file" not in defect:
        return NOT_TRIED, "no single piece of code mends it"
    path = copy / defect["file"]
    text = path.read_text()
    path.write_text(text.replace(defect["mended"], defect["undone"]))
    try:
        return _run(defect["tests"], copy)
    finally:
        path.write_text(text)


def _run(tests: list[str], copy: Path) -> tuple[str, str]:
    names = [str(Path("tests") / test) for test in tests]
    options = ["-q", "-x", "-m", "", "-p", "no:cacheprovider"]  # slow tests too
    command = [sys.executable, "-m", "pytest", *options, *names]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    lines = done.stdout.splitlines()
    failed = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "")
    if done.returncode == 1 and failed.startswith("FAILED"):
        return SHOWN, failed.removeprefix("FAILED tests/")
    return (MISSED, "") if done.returncode == 0 else (BROKEN, (lines or [""])[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int)
    chosen = parser.parse_args().numbers
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, copy / name)
        for defect in DEFECTS:
            if not chosen or defect["number"] in chosen:
                start = time.monotonic()
                verdict, detail = judge(defect, copy)
                found[verdict] += 1
                seconds = time.monotonic() - start
                line = f"{defect['number']:3} {verdict:9} {seconds:4.0f} s {detail}"
                print(line[:150], flush=True)
    for verdict, count in found.items():
        print(f"{verdict:10} {count:3}")
    return int(bool(found[MISSED] or found[BROKEN]))


if __name__ == "__main__":
    sys.exit(main())
