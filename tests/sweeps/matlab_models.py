"""The public models as MATLAB code in GNU Octave: `python -m tests.sweeps.matlab_models`.

Every model of at most 300 nodes is written and judged by `verify` on valid inputs, or refused by
name. Prints a row for each, and their count; fails where one is written and not the same.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import sardonyx as sx
from sardonyx.engines.matlab.write import generate
from sardonyx.errors import SardonyxError
from sardonyx.verify.noise import SAME
from sardonyx.verify.subjects import OnnxSubject
from tests import real_inputs
from tests.public_models import models
from tests.sweeps.verify import precise

LARGEST = 300
NO_LOCALE = ("hatesonar/model.onnx",)
REFUSED = "refused"


def judged(name: str, path: Path) -> tuple[str, str]:
    """The verdict on one model, and the words to it."""
    # Without an English locale, onnxruntime does not load models that change the case of text.
    first = OnnxSubject(sx.load(path), "numpy") if name in NO_LOCALE else precise(path)
    inputs = real_inputs.inputs(name, first.model)
    try:
        generate(first.model)
    except SardonyxError as error:
        return REFUSED, " / ".join(str(error).splitlines()[:8])
    try:
        report = sx.verify(first, "octave", inputs=[inputs], culprit=False)
    except SardonyxError as error:
        return "fails", str(error)
    words = "" if report.verdict == SAME else "; ".join(report.notes)
    return report.verdict, f"ratio {report.ratio:.3g} {words}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of models; all if left out")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for name, path in models().items():
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        if len(list(sx.load(path).graph)) > LARGEST:
            continue
        start = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict, words = judged(name, path)
        counts[verdict] += 1
        print(f"{verdict:10} {time.monotonic() - start:6.1f} s  {name}  {words[:400]}", flush=True)
    print(f"{sum(counts.values())} models of at most {LARGEST} nodes: {dict(counts)}")
    sys.exit(bool(set(counts) - {SAME, REFUSED}))


if __name__ == "__main__":
    main()
