"""Every number of the list has a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .the_list import PROMISES

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![a-z])(ext|lnk|bomb|scan|fold|str|exe|run|sav|err)[-_](\d\d)", re.I)


def test_every_number_has_a_test_that_runs_on_each_change() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(Path(__file__).parent)], cwd=ROOT, capture_output=True, text=True
    )
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    result = {f"{kind.upper()}-{number}" for t in tests for kind, number in NUMBER.findall(t)}
    assert result == set(PROMISES), (done.stderr[-500:], result ^ set(PROMISES))
