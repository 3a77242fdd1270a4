"""Models that nobody here wrote, as users receive them from a conversion, at two batch sizes.

A few small ones with every change, all of them nightly; `sweeps/converted.py` prints the table.
"""

from __future__ import annotations

import pytest

from tests.public_models import models
from tests.sweeps.converted import CONVERT, SAME, judge

QUICK = ("onnx-asr/resample_11_8.onnx", "pulsevad/pulsevad_2.1k.onnx", "whatenc/model.onnx")
NO_LOCALE = ("hatesonar/model.onnx",)  # onnxruntime needs an English locale for its text

IMPORTED = {"compile": "torch", "export": "torch"}  # further ways through torch


@pytest.mark.parametrize("framework", CONVERT)
@pytest.mark.parametrize("name", QUICK)
def test_small_model(name: str, framework: str) -> None:
    pytest.importorskip(IMPORTED.get(framework, framework))
    outcome = judge(name, framework)
    assert outcome.verdict == SAME, outcome


@pytest.mark.nightly
@pytest.mark.parametrize("framework", CONVERT)
@pytest.mark.parametrize("name", [n for n in models() if n not in (*QUICK, *NO_LOCALE)])
def test_model(name: str, framework: str) -> None:
    pytest.importorskip(IMPORTED.get(framework, framework))
    outcome = judge(name, framework)
    assert outcome.verdict == SAME, outcome
