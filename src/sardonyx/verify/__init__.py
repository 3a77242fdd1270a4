"""Verification: whether two programs give the same numbers, and if not, which node is to blame.

compare.py    one comparison from end to end (`verify`)
subjects.py   what can be compared · inputs.py, datasets.py   on what
exact.py      the float64 run and the baseline · coarse.py, jitter.py   where those say too little
noise.py      the ratio and the verdict · ties.py   jumps
culprit.py    each node alone; segments.py cuts the pieces
training.py   trajectories of training steps
report.py     the result; page.py its HTML
"""

from __future__ import annotations

from sardonyx.verify.compare import verify
from sardonyx.verify.report import Report

__all__ = ["Report", "verify"]
