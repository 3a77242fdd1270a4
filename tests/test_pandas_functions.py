"""Preparations of notebooks: recorded, and held against pandas in a stock onnxruntime."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import onnx
import onnxruntime as ort
import pandas as pd
import pytest

import sardonyx as sx
from tests.pandas_functions import frames, more_frames

TASKS = (
    "clicks", "credit", "houses", "listings", "restaurants", "taxi", "titanic", "types", "adult",
    "airbnb", "bike", "cars", "flights", "heart", "hotel", "logs", "sales", "spaceship", "telco",
    "wine", "titanic_more", "houses_more", "clicks_more", "taxi_more", "credit_more",
    "restaurants_more", "listings_more",
)  # fmt: skip
MODULES = {task: importlib.import_module(f"tests.pandas_functions.{task}") for task in TASKS}
FUNCTIONS = [
    (task, name)
    for task, module in MODULES.items()
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__
]
QUICK = 2  # of each task, on every change; the others with the slow tests
CHOSEN = [
    pytest.param(
        *pair,
        marks=[] if number < QUICK - task.endswith("_more") else [pytest.mark.slow],
        id="-".join(pair),
    )
    for task in TASKS
    for number, pair in enumerate(p for p in FUNCTIONS if p[0] == task)
]


def plain(series: pd.Series) -> list[Any]:
    """Python values as texts, every missing one None; numbers as numbers."""
    values = series.astype(object)
    return [None if gone else v for v, gone in zip(values, series.isna(), strict=True)]


@pytest.mark.parametrize(("task", "name"), CHOSEN)
def test_the_graph_is_what_pandas_computes(task: str, name: str) -> None:
    table = task.removesuffix("_more")
    make = getattr(frames, table, None) or getattr(more_frames, table)
    function, frame = getattr(MODULES[task], name), make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sx.from_pandas(function, frame)
        expected = function(frame.copy())
    proto = model.proto()
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString())
    actual = model.frame(session.run(None, model.feeds(frame)))
    if isinstance(expected, pd.Series):
        expected, actual = expected.to_frame("result"), actual.to_frame("result")
    assert list(actual.columns) == list(expected.columns)
    for label in expected.columns:
        tolerance = 1e-5 if expected[label].dtype in ("float32", "Float32") else 1e-9
        for want, have in zip(plain(expected[label]), plain(actual[label]), strict=True):
            if isinstance(want, float) and isinstance(have, (int, float)):
                assert have == pytest.approx(want, rel=tolerance, abs=1e-12)
            else:
                assert str(have) == str(want) or have == want


def test_there_are_many() -> None:
    assert len(FUNCTIONS) > 260
