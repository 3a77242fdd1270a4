"""Round trips: load → save → onnxruntime gives bit for bit what the original file gives.

Every model of the official suite and of the public packages that onnxruntime runs; each as it is,
and (within rounding) in its normalized form. A sample runs with every change, all of them nightly.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper as numpy_helper
import onnxruntime as ort
import pytest

from sardonyx.model import load
from sardonyx.normalize import normalize
from sardonyx.save import save
from tests import public_models

SAMPLE = 24  # one in so many of the official cases


@cache
def cases() -> dict[str, Path]:
    return {name: folder / "model.onnx" for name, folder in public_models.official_cases().items()}


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def stored_feeds(path: Path, runner: ort.InferenceSession) -> dict[str, Any] | None:
    """The stored inputs of an official case; None where they are not all tensors."""
    feeds = {}
    for i, wanted in enumerate(runner.get_inputs()):
        stored = path.parent / "test_data_set_0" / f"input_{i}.pb"
        if not stored.exists() or not wanted.type.startswith("tensor("):
            return None
        feeds[wanted.name] = numpy_helper.to_array(onnx.load_tensor(stored))
    return feeds


KINDS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


def made_feeds(runner: ort.InferenceSession, size: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds = {}
    for wanted in runner.get_inputs():
        shape = [
            d if isinstance(d, int) else (size if i else 1) for i, d in enumerate(wanted.shape)
        ]
        if wanted.type == "tensor(string)":
            feeds[wanted.name] = np.full(shape, "a word", object)
        else:
            kind = np.dtype(KINDS[wanted.type])
            random = rng.random(shape) if kind.kind == "f" else rng.integers(0, 2, shape)
            feeds[wanted.name] = random.astype(kind)
    return feeds


def flat(results: Any) -> list[Any]:
    if isinstance(results, list):
        return [leaf for result in results for leaf in flat(result)]
    return [results]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        floating = a.dtype.kind == "f"
        return a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=floating))
    return bool(a == b)


def round_trip(path: Path, folder: Path, feeds: Any) -> None:
    try:
        original = session(path)
        given = feeds(original)
        if given is None:
            pytest.skip("its stored inputs are not tensors")
        expected = flat(original.run(None, given))
    except Exception as error:  # onnxruntime's errors have no class of their own in common
        pytest.skip(f"onnxruntime does not run the original: {str(error)[:200]}")
    model = load(path)
    found = flat(session(save(model, folder / "as_it_is.onnx")).run(None, given))
    assert len(found) == len(expected) and all(map(same, expected, found))
    normal = flat(session(save(normalize(model), folder / "normal.onnx")).run(None, given))
    for a, b in zip(expected, normal, strict=True):
        if isinstance(a, np.ndarray) and a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
        else:
            assert same(a, b)


def official(path: Path, folder: Path) -> None:
    round_trip(path, folder, lambda runner: stored_feeds(path, runner))


def test_a_sample_of_the_official_suite(tmp_path: Path) -> None:
    names = sorted(cases())[::SAMPLE]
    assert len(names) > 50
    for name in names:
        try:
            official(cases()[name], tmp_path)
        except pytest.skip.Exception:
            continue
        except Exception as error:
            error.add_note(f"in {name}")
            raise


@pytest.mark.nightly
def test_the_official_suite(tmp_path: Path) -> None:
    failed, skipped = [], 0
    for name, path in cases().items():
        try:
            official(path, tmp_path)
        except pytest.skip.Exception:
            skipped += 1
        except Exception as error:
            failed.append(f"{name}: {str(error)[:120]}")
    print(f"official suite: {len(cases())} cases, {skipped} skipped, {len(failed)} failed")
    assert not failed, "\n".join(failed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(public_models.requirements()))
def test_public_models(name: str, tmp_path: Path) -> None:
    found = [path for key, path in public_models.models().items() if key.startswith(f"{name}/")]
    ran = 0
    for path in found:
        for size in (16, 4096, 64):
            try:
                round_trip(path, tmp_path, lambda runner, size=size: made_feeds(runner, size))
            except pytest.skip.Exception:
                continue
            ran += 1
            break
    print(f"{name}: {ran} of {len(found)} models ran")
    if not ran:
        pytest.skip("onnxruntime runs none of its models on made-up inputs")
