"""Round trips: load → save → onnxruntime gives bit for bit what the original file gives.

Every model of the official suite and of the public packages that onnxruntime runs; each as it is,
and (within rounding) in its normalized form. A sample runs with every change, all of them nightly;
tests/sweeps/roundtrip.py prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.model import Model, load
from sardonyx.normalize import normalize
from sardonyx.save import save
from tests import public_models
from tests.sweeps.roundtrip import (
    DIFFERS,
    IDENTICAL,
    NOT_RUN,
    Trip,
    difference,
    judge,
    official_suite,
    public,
    run,
    session,
)

SAMPLE = 24  # one in so many of the official cases
QUICK = (
    "pulsevad/pulsevad_2.1k_int8.onnx",
    "silero-vad/silero_vad.onnx",
    "speechmos/model_v8.onnx",
    "surfaces-onnx-files/k_neighbors_classifier.onnx",
    "whatenc/model.onnx",
)


def flat(results: Any) -> list[Any]:
    if isinstance(results, list):
        return [leaf for result in results for leaf in flat(result)]
    return [results]


def round_trip(trip: Trip, folder: Path) -> str:
    """The verdict on the file as it is; where that is the same, the normalized form agrees too."""
    verdict = judge(trip, folder)
    assert verdict.kind != DIFFERS, f"{trip.name}: {verdict}"
    if verdict.kind == IDENTICAL:
        original, model = session(trip.path), load(trip.path)
        normal = session(save(normalize(model), folder / "normal.onnx"))
        for feeds in trip.feeds(model, [i.name for i in original.get_inputs()]):
            agree(flat(run(original, feeds)), flat(run(normal, feeds)))
    return verdict.kind


def agree(expected: list[Any], found: list[Any]) -> None:
    for a, b in zip(expected, found, strict=True):
        if isinstance(a, np.ndarray) and a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
        elif isinstance(a, tuple):  # types without arrays: rounding is not to be told from bits
            assert a[:2] == b[:2]
        else:
            assert difference(a, b) is None


def noted(trips: Iterator[Trip], folder: Path) -> list[str]:
    """The verdicts; an error says in which model."""
    kinds = []
    for trip in trips:
        try:
            kinds.append(round_trip(trip, folder))
        except Exception as error:
            error.add_note(f"in {trip.name}")
            raise
    return kinds


def test_a_sample_of_the_official_suite(tmp_path: Path) -> None:
    kinds = noted(islice(official_suite(tmp_path), 0, None, SAMPLE), tmp_path)
    assert kinds.count(IDENTICAL) > 50


@pytest.mark.nightly
def test_the_official_suite(tmp_path: Path) -> None:
    failed, kinds = [], []
    for trip in official_suite(tmp_path):
        try:
            kinds.append(round_trip(trip, tmp_path))
        except Exception as error:
            failed.append(f"{trip.name}: {str(error)[:200]}")
    assert not failed, "\n".join(failed)
    assert kinds.count(IDENTICAL) > 1200


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly)
        for name in public_models.models()
    ],
)
def test_public_models(name: str, tmp_path: Path) -> None:
    (kind,) = noted(public([name]), tmp_path)
    if name not in QUICK and kind == NOT_RUN:
        pytest.skip("onnxruntime does not run the original here")
    assert kind == IDENTICAL


# -- the comparison itself ------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.float32([1]), np.nextafter(np.float32([1]), np.float32(2))),
        (np.float32([0.0]), np.float32([-0.0])),
        (np.float32([1]), np.float64([1])),
        (np.float32([1]), np.float32([[1]])),
        (np.float32([np.nan]), np.float32([1])),
        (np.array(["a"], object), np.array(["b"], object)),
        ([np.int64([1]), np.int64([2])], [np.int64([1])]),
        ([{1: 0.5}], [{1: 0.25}]),
    ],
    ids=["one ulp", "sign of zero", "type", "shape", "nan", "string", "sequence", "map"],
)
def test_what_is_not_bit_identical_differs(a: Any, b: Any) -> None:
    assert difference(a, b) is not None and difference(a, a) is None


def test_a_save_that_changes_a_weight_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(model: Model, path: Path) -> Path:
        proto = save(model, path) and onnx.load(path)
        weight = next(t for t in proto.graph.initializer if t.data_type == t.FLOAT)
        array = onnx.numpy_helper.to_array(weight)
        weight.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.0001), weight.name))
        onnx.save(proto, path)
        return path

    monkeypatch.setattr("tests.sweeps.roundtrip.save", careless)
    (trip,) = public(["whatenc/model.onnx"])
    assert judge(trip, tmp_path).kind == DIFFERS
