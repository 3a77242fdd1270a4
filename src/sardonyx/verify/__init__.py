"""Verification: whether two programs give the same numbers, and if not, which node is at fault.

compare.py    one comparison from end to end (`verify`) · budget.py   how long it may take
subjects.py   what can be compared · converted.py   the ONNX model of a converted module
interface.py  whether two models have the same inputs and outputs
draw.py, inputs.py   random inputs that show something · datasets.py   inputs in files
exact.py      the float64 run and the baseline · coarse.py, jitter.py   where those say too little
noise.py      the ratio and the verdict · ties.py   jumps
locate.py     the search in each candidate · culprit.py each node alone · segments.py the pieces
gradients.py  gradients as subjects · training.py   trajectories of training steps
report.py     the result; page.py its HTML
"""

from __future__ import annotations

from sardonyx.verify.compare import verify
from sardonyx.verify.report import Report

__all__ = ["Report", "verify"]
